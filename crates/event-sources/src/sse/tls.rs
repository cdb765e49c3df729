//! Encryption of streams: whose certificates are believed.

use std::{fmt, io, sync::Arc};

use net::Stream;
use rustls::{
    ClientConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use rustls_platform_verifier::Verifier;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Believes the certificates that this machine believes, and those signed by the ones given.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

/// Why there is nothing to check certificates with.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The text holds no certificate, or one that is damaged.
    #[error("certificates of authorities cannot be read ({reason}): give one or more as PEM text")]
    Pem {
        /// What is wrong.
        reason: String,
    },
    /// This machine's certificates cannot be used, and none was given.
    #[error(
        "no authority's certificate to check servers with ({0}): install the system's ca-certificates, or give the one to believe"
    )]
    Roots(#[from] rustls::Error),
}

impl Trust {
    /// What this machine believes.
    pub fn system() -> Result<Self, TrustError> {
        Self::with(Vec::new())
    }

    /// The same and the authorities in this PEM text.
    pub fn with_authorities(pem: &[u8]) -> Result<Self, TrustError> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match read {
            Ok(found) if !found.is_empty() => Self::with(found),
            Ok(_) => Err(TrustError::Pem { reason: "there is none".to_owned() }),
            Err(error) => Err(TrustError::Pem { reason: error.to_string() }),
        }
    }

    fn with(extra: Vec<CertificateDer<'static>>) -> Result<Self, TrustError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Verifier::new_with_extra_roots(extra, Arc::clone(&provider))?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// The same for a protocol that is not HTTP.
    #[cfg(feature = "nats")]
    pub(crate) fn without_http(&self) -> ClientConfig {
        let mut config = (*self.0).clone();
        config.alpn_protocols.clear();
        config
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
