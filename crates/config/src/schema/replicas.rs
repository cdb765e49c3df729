//! The section about routers that share what they know. This version runs each by itself.

use super::{
    Key, Kind, key,
    kinds::{SECONDS, section},
    word, word_later,
};

pub(super) const REPLICAS: &[Key] = &[
    key(
        "mode",
        Kind::Word(&[word("none"), word_later("nats"), word_later("peers")]),
        "none",
        "How routers of one fleet share what they know; `none` = each learns for itself.",
    ),
    key("namespace", Kind::Text, "warmroute", "Those of one namespace and component share.").later(),
    key("component", Kind::Text, "router", "The second part of that name.").later(),
    section(
        "nats",
        &[
            key("url", Kind::Stream(&["nats", "tls"]), "~", "The server.").later(),
            key("stream", Kind::Text, "warmroute-kv", "Name of the stream of events.").later(),
            key("retention", SECONDS, "1h", "How long the stream keeps events.").later(),
            key(
                "snapshot_threshold",
                Kind::Int { min: 1, max: u64::MAX },
                "1000000",
                "Messages in the stream at which a snapshot of the index takes their place (`--router-snapshot-threshold`).",
            )
            .later(),
        ],
        "The stream that routers share.",
    ),
    key("peers", Kind::List(&Kind::Text), "[]", "The other routers.").later(),
    key(
        "load_sync",
        Kind::Bool,
        "false",
        "Tell the other routers which requests run where (`--router-replica-sync`).",
    )
    .later(),
    key(
        "reset_states",
        Kind::Bool,
        "false",
        "Start without what earlier runs left in stream and snapshot (`--router-reset-states`); a router by itself leaves nothing.",
    ),
    key("digest_interval", SECONDS, "1s", "Time between comparisons of what each knows.").later(),
    key("peer_ttl", SECONDS, "15s", "A router that is not heard for this long is gone.").later(),
];
