//! Encryption, of listeners and towards workers.

use super::{Key, Kind, key};

pub(super) const LISTENER: &[Key] = &[
    key(
        "cert",
        Kind::Path,
        "~",
        "Certificate, and those that lead from it to its authority, PEM; read again when it changes.",
    ),
    key("key", Kind::Path, "~", "Its private key, PEM."),
    key(
        "client_ca",
        Kind::Path,
        "~",
        "Clients must show a certificate of an authority in this file, PEM.",
    ),
];

pub(super) const WORKER: &[Key] = &[
    key(
        "ca",
        Kind::Path,
        "~",
        "File of authorities that are believed beside the machine's own, PEM.",
    ),
    key(
        "insecure_skip_verify",
        Kind::Bool,
        "false",
        "Believe any certificate. `/health` says `degraded` for as long as this is so.",
    ),
];
