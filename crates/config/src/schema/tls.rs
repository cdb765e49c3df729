//! TLS of listeners and towards workers.

use super::{KeySchema, ValueKind, key};

pub(super) const LISTENER: &[KeySchema] = &[
    key(
        "cert",
        ValueKind::Path,
        "~",
        "Certificate, and those that lead from it to its authority, PEM; read again when it changes.",
    ),
    key("key", ValueKind::Path, "~", "Its private key, PEM."),
    key(
        "client_ca",
        ValueKind::Path,
        "~",
        "Clients must show a certificate of an authority in this file, PEM.",
    ),
];

pub(super) const WORKER: &[KeySchema] = &[
    key(
        "ca",
        ValueKind::Path,
        "~",
        "File of authorities that are believed beside the machine's own, PEM.",
    ),
    key(
        "insecure_skip_verify",
        ValueKind::Bool,
        "false",
        "Believe any certificate. `/health` says `degraded` for as long as this is so.",
    ),
];
