//! What takes the place of a model that a request names.

use super::{Key, Kind, key};

pub(super) const RULE: &[Key] = &[
    key(
        "match",
        Kind::Text,
        "~",
        "The model that a request names; `*` stands for anything. Required.",
    ),
    key(
        "rewrite",
        Kind::Text,
        "~",
        "The model that it gets instead; unset = the one it names.",
    ),
    key(
        "fallback",
        Kind::List(&Kind::Text),
        "[]",
        "Models tried in this order while no worker can take the request for the one before.",
    ),
];
