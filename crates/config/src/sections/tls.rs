//! TLS of listeners and towards workers.

use std::path::PathBuf;

settings::section! {
    /// Sections `server.tls` and `admin.tls`, if set.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct ListenerTls {
        /// Certificate chain file, PEM; read again when it changes.
        cert: PathBuf = "~", restart;
        /// Private key file of the certificate, PEM.
        key: PathBuf = "~", restart;
        /// File of certificate authorities, PEM; clients must present a certificate of one of them.
        client_ca: Option<PathBuf> = "~", restart;
        /// File of certificate revocation lists of those authorities, PEM; read again when it
        /// changes. It must have a list, not over, of the issuer of every client certificate.
        client_crl: Option<PathBuf> = "~", restart;
        /// DNS names and addresses of which a client certificate must carry one. Empty: every
        /// certificate of the authorities is accepted.
        client_names: Vec<String> = "[]", restart;
    }
}

settings::section! {
    /// Section `workers[].tls`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct WorkerTls {
        /// File of certificate authorities that are trusted beside those of the system, PEM.
        ca: Option<PathBuf> = "~", live;
        /// Accept any certificate. `/health` reports `degraded` meanwhile.
        insecure_skip_verify: bool = "false", live;
    }
}
