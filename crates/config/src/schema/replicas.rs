//! The section about routers that share state. In this version each router runs by itself.

use super::{
    KeySchema, ValueKind, key,
    kinds::{SECONDS, section},
    word, word_later,
};

pub(super) const REPLICAS: &[KeySchema] = &[
    key(
        "mode",
        ValueKind::Word(&[word("none"), word_later("nats"), word_later("peers")]),
        "none",
        "How routers of one fleet share what they know; `none` = each learns for itself.",
    ),
    key("namespace", ValueKind::Text, "warmroute", "Those of one namespace and component share.").later(),
    key("component", ValueKind::Text, "router", "The second part of that name.").later(),
    section(
        "nats",
        &[
            key("url", ValueKind::Stream(&["nats", "tls"]), "~", "The server.").later(),
            key("stream", ValueKind::Text, "warmroute-kv", "Name of the stream of events.").later(),
            key("retention", SECONDS, "1h", "How long the stream keeps events.").later(),
            key(
                "snapshot_threshold",
                ValueKind::Int { min: 1, max: u64::MAX },
                "1000000",
                "Messages in the stream at which a snapshot of the index takes their place (`--router-snapshot-threshold`).",
            )
            .later(),
        ],
        "The stream that routers share.",
    ),
    key("peers", ValueKind::List(&ValueKind::Text), "[]", "The other routers.").later(),
    key(
        "load_sync",
        ValueKind::Bool,
        "false",
        "Tell the other routers which requests run where (`--router-replica-sync`).",
    )
    .later(),
    key(
        "reset_states",
        ValueKind::Bool,
        "false",
        "Start without what earlier runs left in stream and snapshot (`--router-reset-states`); a router by itself leaves nothing.",
    ),
    key("digest_interval", SECONDS, "1s", "Time between comparisons of what each knows.").later(),
    key("peer_ttl", SECONDS, "15s", "A router that is not heard for this long is gone.").later(),
];
