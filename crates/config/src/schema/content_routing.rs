//! Routing by the meaning and by the beginning of prompts.

use super::{
    KeySchema, ValueKind, key,
    kinds::{RATIO, SECONDS},
};

pub(super) const SEMANTIC_CLUSTERS: &[KeySchema] = &[
    key(
        "enabled",
        ValueKind::Bool,
        "false",
        "Keep prompts that mean alike on the workers of their cluster.",
    ),
    key(
        "embedding_model",
        ValueKind::Text,
        "~",
        "The model whose vectors are compared, served at `/v1/embeddings` by one of `workers`. Required where enabled.",
    ),
    key(
        "threshold",
        RATIO,
        "0.7",
        "Least cosine between a prompt and a cluster's examples for it to belong there.",
    ),
    key(
        "timeout",
        SECONDS,
        "500ms",
        "Longest that a request waits for its vector; then it goes without a cluster.",
    ),
    key(
        "clusters",
        ValueKind::List(&ValueKind::Section(&[
            key(
                "name",
                ValueKind::Text,
                "~",
                "Its name, in receipts and as `x-semantic-cluster-id`. Required, unique.",
            ),
            key(
                "examples",
                ValueKind::List(&ValueKind::Text),
                "[]",
                "Prompts that belong there, a line each; 8 to 16 do well. Required.",
            ),
            key(
                "workers",
                ValueKind::List(&ValueKind::Text),
                "[]",
                "Names of its workers; the others serve it where none of these can. Required.",
            ),
        ])),
        "[]",
        "The clusters. Required where enabled.",
    ),
];

pub(super) const SHARED_PREFIX_ROUTING: &[KeySchema] = &[
    key(
        "enabled",
        ValueKind::Bool,
        "false",
        "Under `kv_aware` and `cache_aware`, remember who served prompts that begin alike, for where nobody is known to have such \
         a prompt cached.",
    ),
    key(
        "prefix_chars",
        ValueKind::Int {
            min: 1,
            max: 65_536,
        },
        "256",
        "Characters of a prompt's beginning that count.",
    ),
    key(
        "ttl",
        SECONDS,
        "300s",
        "How long an entry counts after it was written.",
    ),
    key(
        "write_probability",
        RATIO,
        "0.1",
        "How often an entry that is there already is written anew.",
    ),
    key(
        "max_entries",
        ValueKind::Int {
            min: 1,
            max: 100_000_000,
        },
        "100000",
        "Most entries.",
    ),
];
