//! The TLS identity of a listener, read from files that may change while it listens.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, VerifierBuilderError},
};
use tokio_rustls::TlsAcceptor;

use super::{
    ClientNames, HTTP_1, HTTP_2, TlsAccept,
    client_verifier::ClientVerifier,
    provider,
    trust::{certificates, pem_objects},
};
use crate::Stream;

/// Largest file that is read. A revocation list has about 40 bytes for each certificate.
const MAX_FILE: u64 = 4 << 20;

/// Contents of the files, in errors.
const CERTIFICATE: &str = "certificate";
const PRIVATE_KEY: &str = "private key";
const AUTHORITY: &str = "certificate of an authority";
const REVOCATION_LIST: &str = "revocation list";

/// Paths of a listener's certificate files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// PEM text: the certificate, then the chain to its authority.
    pub cert: PathBuf,
    /// PEM text: the certificate's private key.
    pub key: PathBuf,
    /// PEM text: authorities that may sign client certificates; `None` = no client certificates.
    pub client_ca: Option<PathBuf>,
    /// PEM text: lists of the client certificates that those authorities have revoked.
    pub client_crl: Option<PathBuf>,
}

/// The reason why a listener has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("{} cannot be read ({source}): name a file that this user may read", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file has unexpected content.
    #[error("{} holds no usable {what} ({reason}): give it as PEM text", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// The key does not match the certificate, and the like.
    #[error("{} and {} do not go together ({source}): give a certificate and its own key", cert.display(), key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The error of the TLS library.
        source: rustls::Error,
    },
}

impl IdentityError {
    /// Returns the file that the error concerns.
    pub fn path(&self) -> &Path {
        match self {
            Self::File { path, .. } | Self::Content { path, .. } => path,
            Self::Pair { key, .. } => key,
        }
    }
}

/// A listener's certificate and key, kept in line with their files.
pub struct TlsIdentity {
    files: IdentityFiles,
    client_names: ClientNames,
    protocols: HttpProtocols,
    current: Mutex<LoadedIdentity>,
}

/// What a listener offers in the handshake (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpProtocols {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, else HTTP/1.1.
    Http2,
}

struct LoadedIdentity {
    config: Arc<ServerConfig>,
    /// The content of the files at the last check, whether or not it was usable.
    seen: IdentityContents,
    /// Why it was unusable at the last check.
    problem: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
struct IdentityContents {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
    client_crl: Option<Vec<u8>>,
}

impl TlsIdentity {
    /// Reads the files, for a listener that speaks `protocols`. If it asks for client certificates,
    /// each must carry one of `client_names`.
    ///
    /// # Errors
    /// A file cannot be read, has other content, or does not go with the others.
    pub fn load(
        files: IdentityFiles,
        client_names: ClientNames,
        protocols: HttpProtocols,
    ) -> Result<Self, IdentityError> {
        let seen = contents(&files)?;
        let config = Arc::new(config(&files, &seen, &client_names, protocols)?);
        Ok(Self {
            files,
            client_names,
            protocols,
            current: Mutex::new(LoadedIdentity {
                config,
                seen,
                problem: None,
            }),
        })
    }

    /// Returns the permissions of the key's file, where users other than its owner can read it.
    pub fn exposed_key_mode(&self) -> Option<u32> {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&self.files.key)
            .ok()?
            .permissions()
            .mode()
            & 0o777;
        (mode & 0o077 != 0).then_some(mode)
    }

    /// Returns the paths.
    pub fn files(&self) -> &IdentityFiles {
        &self.files
    }

    /// Checks the files again; true if new connections get a new identity. Unusable content changes
    /// nothing, and the same error is logged once.
    pub fn refresh(&self) -> Result<bool, IdentityError> {
        let read = contents(&self.files);
        if let Ok(found) = &read
            && self.current.lock().seen == *found
        {
            return Ok(false);
        }
        let read = read.map(|found| {
            let config = config(&self.files, &found, &self.client_names, self.protocols);
            (config, found)
        });
        let mut current = self.current.lock();
        let config = match read {
            Ok((config, found)) => {
                current.seen = found;
                config
            }
            Err(error) => Err(error),
        };
        match config {
            Ok(config) => {
                current.config = Arc::new(config);
                current.problem = None;
                Ok(true)
            }
            Err(error) if current.problem.as_ref() == Some(&error.to_string()) => Ok(false),
            Err(error) => {
                current.problem = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// Wraps a fresh connection in its encrypted form. It shakes hands when it is first read.
    pub(crate) fn accept(&self, stream: Stream) -> TlsAccept {
        let config = Arc::clone(&self.current.lock().config);
        TlsAccept::new(TlsAcceptor::from(config).accept(stream))
    }
}

fn contents(files: &IdentityFiles) -> Result<IdentityContents, IdentityError> {
    let optional = |path: &Option<PathBuf>, what| {
        let path = path.as_ref();
        path.map(|path| read(path, what)).transpose()
    };
    Ok(IdentityContents {
        cert: read(&files.cert, CERTIFICATE)?,
        key: read(&files.key, PRIVATE_KEY)?,
        client_ca: optional(&files.client_ca, AUTHORITY)?,
        client_crl: optional(&files.client_crl, REVOCATION_LIST)?,
    })
}

fn read(path: &Path, what: &'static str) -> Result<Vec<u8>, IdentityError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|source| IdentityError::File {
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() as u64 > MAX_FILE {
        let reason = format!("it has more than {} MiB", MAX_FILE >> 20);
        return Err(unusable(path, what, reason));
    }
    Ok(bytes)
}

fn unusable(path: &Path, what: &'static str, reason: String) -> IdentityError {
    IdentityError::Content {
        path: path.to_owned(),
        what,
        reason,
    }
}

fn config(
    files: &IdentityFiles,
    contents: &IdentityContents,
    client_names: &ClientNames,
    protocols: HttpProtocols,
) -> Result<ServerConfig, IdentityError> {
    let chain = certificates(&contents.cert)
        .map_err(|reason| unusable(&files.cert, CERTIFICATE, reason))?;
    let key = PrivateKeyDer::from_pem_slice(&contents.key)
        .map_err(|error| unusable(&files.key, PRIVATE_KEY, error.to_string()))?;
    let pair = |source| IdentityError::Pair {
        cert: files.cert.clone(),
        key: files.key.clone(),
        source,
    };
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let verifier = client_verifier(files, contents, client_names)?;
    let asks_for_certificates = verifier.is_some();
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(Arc::new(verifier)),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
    if asks_for_certificates {
        // A resumed session shows no certificate, and the earlier one may be revoked or over.
        config.session_storage = Arc::new(NoServerSessionStorage {});
    }
    config.alpn_protocols = match protocols {
        HttpProtocols::Http1 => vec![HTTP_1.to_vec()],
        HttpProtocols::Http2 => vec![HTTP_2.to_vec(), HTTP_1.to_vec()],
    };
    Ok(config)
}

fn client_verifier(
    files: &IdentityFiles,
    contents: &IdentityContents,
    names: &ClientNames,
) -> Result<Option<ClientVerifier>, IdentityError> {
    let (Some(path), Some(pem)) = (&files.client_ca, &contents.client_ca) else {
        return Ok(None);
    };
    let mut roots = RootCertStore::empty();
    for authority in certificates(pem).map_err(|reason| unusable(path, AUTHORITY, reason))? {
        roots
            .add(authority)
            .map_err(|error| unusable(path, AUTHORITY, error.to_string()))?;
    }
    let lists = match (&files.client_crl, &contents.client_crl) {
        (Some(path), Some(pem)) => {
            pem_objects(pem).map_err(|reason| unusable(path, REVOCATION_LIST, reason))?
        }
        _ => Vec::new(),
    };
    let verifier = ClientVerifier::new(roots, lists, names.clone());
    let verifier = verifier.map_err(|error| match (&error, &files.client_crl) {
        (VerifierBuilderError::InvalidCrl(_), Some(path)) => {
            unusable(path, REVOCATION_LIST, error.to_string())
        }
        _ => unusable(path, AUTHORITY, error.to_string()),
    })?;
    Ok(Some(verifier))
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Shows nothing of the key.
        f.debug_struct("Identity")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}
