//! The section about names of other routers that this one answers with too.

use super::{Key, Kind, key, word};

pub(super) const COMPAT: &[Key] = &[
    key(
        "headers",
        Kind::List(&Kind::Word(&[word("vllm-router")])),
        "[]",
        "Whose reply headers stand beside ours: `vllm-router` = `x-vllm-router-*`.",
    ),
    key(
        "expose_routing_headers",
        Kind::Bool,
        "true",
        "Replies say in headers where and how they were routed; `x-request-id` and `x-warmroute-rewrites` stand there \
         in any case.",
    ),
    key(
        "metrics",
        Kind::List(&Kind::Word(&[word("continuum")])),
        "[continuum]",
        "Whose metric families are served too.",
    )
    .later(),
];
