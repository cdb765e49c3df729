//! The list of hooks called before routing.

use super::{
    KeySchema, ValueKind, key,
    kinds::{SECONDS, section},
    word,
};

pub(super) const HOOK: &[KeySchema] = &[
    key(
        "name",
        ValueKind::Text,
        "~",
        "Its name, in headers, messages and metrics. Required, unique.",
    ),
    key(
        "url",
        ValueKind::WorkerUrl,
        "~",
        "Where it is asked, with its path. Required.",
    ),
    key("timeout", SECONDS, "1s", "Time for its answer."),
    key(
        "on_error",
        ValueKind::Word(&[word("allow"), word("reject")]),
        "reject",
        "What becomes of a request where the hook gives no usable answer.",
    ),
    section(
        "on_reject",
        &[
            key(
                "status",
                ValueKind::Int { min: 400, max: 499 },
                "403",
                "Status of a request that it rejects.",
            ),
            key(
                "message",
                ValueKind::Text,
                "~",
                "What the client is told; unset = what the hook says.",
            ),
        ],
        "How a rejected request is answered, where the hook does not say.",
    ),
    key(
        "models",
        ValueKind::List(&ValueKind::Text),
        "[]",
        "It is asked only about these models; `*` stands for anything. Empty = about all.",
    ),
];
