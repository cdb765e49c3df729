//! Encryption.

use std::path::PathBuf;

/// `server.tls` and `admin.tls`, where they are set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// The certificate and those that lead from it to its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities one of which must vouch for clients.
    pub client_ca: Option<PathBuf>,
}

/// `workers[].tls`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerTls {
    /// Authorities that are believed beside the machine's own.
    pub ca: Option<PathBuf>,
    /// Whether any certificate is believed.
    pub insecure_skip_verify: bool,
}
