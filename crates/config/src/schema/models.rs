//! Model aliases and rules.

use super::{KeySchema, ValueKind, key};

pub(super) const RULE: &[KeySchema] = &[
    key(
        "match",
        ValueKind::Text,
        "~",
        "The model that a request names; `*` stands for anything. Required.",
    ),
    key(
        "rewrite",
        ValueKind::Text,
        "~",
        "The model that it gets instead; unset = the one it names.",
    ),
    key(
        "fallback",
        ValueKind::List(&ValueKind::Text),
        "[]",
        "Models tried in this order while no worker can take the request for the one before.",
    ),
];
