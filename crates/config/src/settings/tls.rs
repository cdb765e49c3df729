//! TLS settings.

use std::path::PathBuf;

/// `server.tls` and `admin.tls`, if set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// Certificate chain file.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities that sign client certificates.
    pub client_ca: Option<PathBuf>,
}

/// `workers[].tls`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerTls {
    /// Authorities trusted besides the machine's own.
    pub ca: Option<PathBuf>,
    /// Whether any certificate is accepted.
    pub insecure_skip_verify: bool,
}
