//! The section about compatibility names in replies.

use super::{KeySchema, ValueKind, key, word};

pub(super) const COMPAT: &[KeySchema] = &[
    key(
        "headers",
        ValueKind::List(&ValueKind::Word(&[word("vllm-router")])),
        "[]",
        "Whose reply headers stand beside ours: `vllm-router` = `x-vllm-router-*`.",
    ),
    key(
        "expose_routing_headers",
        ValueKind::Bool,
        "true",
        "Replies say in headers where and how they were routed; `x-request-id` and `x-warmroute-rewrites` stand there \
         in any case.",
    ),
    key(
        "metrics",
        ValueKind::List(&ValueKind::Word(&[word("continuum")])),
        "[continuum]",
        "Whose metric families are served too.",
    )
    .later(),
];
