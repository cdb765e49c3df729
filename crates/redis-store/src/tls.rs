//! Encryption: whose certificates are believed.

use std::{fmt, io, sync::Arc};

use net::Stream;
use rustls::{ClientConfig, crypto::aws_lc_rs, pki_types::ServerName};
use rustls_platform_verifier::Verifier;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// There is nothing to check the server's certificate with.
#[derive(Debug, thiserror::Error)]
#[error(
    "no authority's certificate to check the redis server with ({0}): install the system's ca-certificates, or name a file \
     of them in SSL_CERT_FILE"
)]
pub struct TrustError(#[from] rustls::Error);

/// Believes the certificates that this machine believes.
#[derive(Clone)]
pub(crate) struct Trust(Arc<ClientConfig>);

impl Trust {
    pub(crate) fn system() -> Result<Self, TrustError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Verifier::new(Arc::clone(&provider))?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    /// Shakes hands with `host`, whose certificate must be for that name or address.
    pub(crate) async fn encrypt(&self, stream: Stream, host: &str) -> io::Result<TlsStream<Stream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}
