//! Trust roots of outgoing connections.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore,
    client::danger::ServerCertVerifier,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use rustls_platform_verifier::Verifier;
use tokio_rustls::TlsConnector;

use super::{HTTP_1, no_verification::NoVerification, provider};
use crate::Stream;

/// The authorities that this machine trusts, and additional ones.
#[derive(Clone)]
pub struct TrustRoots(Arc<ClientConfig>);

/// The reason why no trust roots can be built.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file of certificates cannot be read.
    #[error("{} cannot be read ({source}): name a file with certificates of authorities as PEM text", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The text holds no certificate, or one that is damaged.
    #[error("certificates of authorities cannot be read ({reason}): give one or more as PEM text")]
    Pem {
        /// The reason.
        reason: String,
    },
    /// This machine's certificates cannot be used, and none was given.
    #[error(
        "no authority's certificate to check servers with ({0}): install the system's ca-certificates, name a file of them \
         in SSL_CERT_FILE, or give the one to believe"
    )]
    Roots(#[from] rustls::Error),
}

impl TrustRoots {
    /// Loads this machine's trust roots.
    pub fn system() -> Result<Self, TrustError> {
        Self::with(Vec::new())
    }

    /// Loads this machine's trust roots off the runtime: reading takes a while, and authorities
    /// change while a router runs.
    pub async fn system_now() -> Result<Self, TrustError> {
        let read = runtime::spawn_blocking(Self::system).await;
        read.unwrap_or_else(|error| {
            Err(TrustError::Roots(rustls::Error::General(error.to_string())))
        })
    }

    /// Loads this machine's trust roots and the authorities in this PEM text.
    pub fn with_authorities(pem: &[u8]) -> Result<Self, TrustError> {
        Self::with(certificates(pem).map_err(|reason| TrustError::Pem { reason })?)
    }

    /// Loads this machine's trust roots and the authorities in this file.
    pub fn with_authorities_in(path: &Path) -> Result<Self, TrustError> {
        let pem = std::fs::read(path).map_err(|source| TrustError::File {
            path: path.to_owned(),
            source,
        })?;
        Self::with_authorities(&pem)
    }

    /// Trusts every certificate: any server that answers passes for the right one, and traffic can
    /// be read and changed on the way.
    pub fn blind() -> Result<Self, TrustError> {
        Self::verifying(Arc::new(NoVerification::new(provider())))
    }

    /// Trusts no certificate: for a library that requires trust roots even where no connection is
    /// encrypted.
    pub fn none() -> Result<Self, TrustError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?;
        Ok(Self(Arc::new(
            builder
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth(),
        )))
    }

    fn with(extra: Vec<CertificateDer<'static>>) -> Result<Self, TrustError> {
        Self::verifying(Arc::new(Verifier::new_with_extra_roots(extra, provider())?))
    }

    fn verifying(verifier: Arc<dyn ServerCertVerifier>) -> Result<Self, TrustError> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.alpn_protocols = vec![HTTP_1.to_vec()];
        Ok(Self(Arc::new(config)))
    }

    /// Returns the same trust roots for a protocol other than HTTP.
    #[must_use]
    pub fn without_http(&self) -> Self {
        let mut config = (*self.0).clone();
        config.alpn_protocols.clear();
        Self(Arc::new(config))
    }

    /// Returns the configuration for a library that makes its own handshakes.
    pub fn client_config(&self) -> ClientConfig {
        (*self.0).clone()
    }

    /// Shakes hands with `host`, whose certificate must be for that name or address.
    pub async fn encrypt(&self, stream: Stream, host: &str) -> io::Result<Stream> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(&self.0))
            .connect(name, stream)
            .await?;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

/// Returns the certificates in a PEM text, at least one; otherwise the reason.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    pem_objects(pem)
}

/// Returns the objects of a kind in a PEM text, at least one; otherwise the reason.
pub(super) fn pem_objects<T: PemObject>(pem: &[u8]) -> Result<Vec<T>, String> {
    let read: Result<Vec<T>, _> = T::pem_slice_iter(pem).collect();
    match read {
        Ok(found) if found.is_empty() => Err("there is none".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(error.to_string()),
    }
}

impl fmt::Debug for TrustRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}
