//! TLS of listeners and towards workers.

use std::path::PathBuf;

settings::section! {
    /// Sections `server.tls` and `admin.tls`, if set.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct ListenerTls {
        /// Certificate, and those that lead from it to its authority, PEM; read again when it
        /// changes.
        cert: PathBuf = "~", restart;
        /// Its private key, PEM.
        key: PathBuf = "~", restart;
        /// Clients must show a certificate of an authority in this file, PEM.
        client_ca: Option<PathBuf> = "~", restart;
    }
}

settings::section! {
    /// Section `workers[].tls`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct WorkerTls {
        /// File of authorities that are believed beside the machine's own, PEM.
        ca: Option<PathBuf> = "~", live;
        /// Believe any certificate. `/health` says `degraded` for as long as this is so.
        insecure_skip_verify: bool = "false", live;
    }
}
