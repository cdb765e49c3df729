//! The section about discovered workers.

use super::{
    KeySchema, ValueKind, key,
    kinds::{ANY_PORT, SECONDS, SECONDS_OR_ZERO},
};

pub(super) const DISCOVERY: &[KeySchema] = &[
    key(
        "file",
        ValueKind::Path,
        "~",
        "File with a list of entries of `workers`, in YAML or JSON, read again whenever it changes.",
    ),
    key(
        "dns",
        ValueKind::List(&ValueKind::Section(DNS)),
        "[]",
        "Names that stand for workers: one worker for each address.",
    ),
    key(
        "kubernetes",
        ValueKind::Free,
        "~",
        "Workers found by the Kubernetes API.",
    )
    .later(),
    key(
        "state_file",
        ValueKind::Path,
        "~",
        "File that keeps the workers which operators added or took out, over a restart (`--state-file`).",
    ),
    key(
        "empty_list_grace",
        SECONDS_OR_ZERO,
        "60s",
        "A source that suddenly names no worker at all is believed only after this.",
    ),
    key(
        "flap_damping",
        SECONDS_OR_ZERO,
        "30s",
        "A worker that went and came again within this goes only after it has been missing for as long.",
    ),
];

const DNS: &[KeySchema] = &[
    key("host", ValueKind::Text, "~", "The name. Required."),
    key(
        "port",
        ANY_PORT,
        "auto",
        "Port of the workers; `auto` = the name is asked for SRV records, which say it.",
    ),
    key(
        "server",
        ValueKind::Listen,
        "~",
        "Name server that is asked, such as 127.0.0.1:8600; unset = the system's.",
    ),
    key("interval", SECONDS, "10s", "Time between questions."),
    key(
        "worker",
        ValueKind::Free,
        "~",
        "What else stands in the entry of each worker found, such as `type` or `api_key`.",
    ),
];
