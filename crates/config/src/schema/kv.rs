//! The sections about KV events and what is learnt from them.

use super::{
    Key, Kind, key,
    kinds::{ANY_INT, AUTO, PORT, RATIO, SECONDS, section, size},
    word, word_later,
};

pub(super) const KV_EVENTS: &[Key] = &[
    key("enabled", Kind::Bool, "true", "Follow the engines' KV events."),
    key("memory_budget", size(1 << 20, 1 << 50), "512MiB", "Memory that the block index may use."),
    key("snapshot", Kind::Path, "~", "File that keeps the index over a restart.").later(),
    key(
        "block_hash",
        Kind::Word(&[word("xxh3"), word("fnv1a"), word_later("keyed")]),
        "xxh3",
        "How block hashes are computed.",
    ),
    key("block_hash_seed", ANY_INT, "1337", "Seed of `xxh3`."),
    key("default_port", PORT, "5557", "Port of the event stream where an engine does not announce one."),
    key("topic_filter", Kind::Text, "", "Only messages whose topic starts with this."),
    key("replay", Kind::Bool, "true", "Ask for missed events where the engine keeps them."),
    key("max_message", size(1 << 10, 1 << 30), "64MiB", "Longest message; a longer one ends the connection."),
    key("queue_batches", Kind::Int { min: 1, max: 1 << 24 }, "65536", "Most batches waiting per stream."),
    key(
        "max_events_per_second",
        Kind::Int { min: 1, max: 1_000_000_000 },
        "1000000",
        "Most events taken per second and stream.",
    )
    .later(),
    key("stale_after", SECONDS, "60s", "A stream without a message is called stale after this."),
    section(
        "prediction",
        &[
            key("ttl", SECONDS, "120s", "A predicted block is forgotten after this."),
            key("max_blocks", Kind::Int { min: 1, max: 1 << 40 }, "1048576", "Most predicted blocks."),
            key("prune_target_ratio", RATIO, "0.8", "When there are more, the oldest go until this share is left."),
        ],
        "The cache of workers without events, predicted from our own decisions.",
    ),
];

pub(super) const WORKER_KV_EVENTS: &[Key] = &[
    key(
        "source",
        Kind::Word(&[word("auto"), word("zmq"), word("none"), word("sse"), word("ws"), word("poll"), word("nats")]),
        "auto",
        "Which kind of stream. `auto` = as `endpoint` says, else ZMQ; `sse` and `ws` = standard events (RFC 1527) over HTTP or \
         a WebSocket; `poll` = TensorRT-LLM's list, which may have one asker only; `nats` = what `warmroute events relay` \
         publishes; `none` = its cache is predicted from our own decisions.",
    ),
    key(
        "endpoint",
        Kind::WordOr(AUTO, &Kind::Stream(&["tcp", "ipc", "http", "https", "ws", "wss", "nats", "tls"])),
        "auto",
        "Where the stream is: `tcp://`, `ipc://` (ZMQ), `http(s)://`, `ws(s)://`, or `nats://HOST:PORT/SUBJECT` (`tls://` if \
         encrypted; each of several ranks has a subject of its own, `SUBJECT.RANK`). `auto` = asked of the engine, else its \
         host at `kv_events.default_port`.",
    ),
    key(
        "replay_endpoint",
        Kind::WordOr(&[word("auto"), word("none")], &Kind::Endpoint),
        "auto",
        "Where missed events can be asked for.",
    ),
    key("topic", Kind::Text, "", "Only messages whose topic starts with this; empty = `kv_events.topic_filter`."),
    key(
        "bind",
        Kind::Bool,
        "false",
        "Listen at `endpoint` and let the engine connect. Workers may share an endpoint: a message belongs to the one whose \
         `topic` it begins with, or which it names as `kv@NAME@MODEL` or `kv@HOST:PORT@MODEL`.",
    ),
    key(
        "token_file",
        Kind::Path,
        "~",
        "File with what the stream's sender wants to see: a bearer token (`sse`, `ws`), or NATS credentials or a token (`nats`).",
    ),
];

/// Nothing in the request path asks this view yet, so what its scores are made of is for later.
pub(super) const KV_CACHE_INDEX: &[Key] = &[
    key(
        "enabled",
        Kind::Bool,
        "false",
        "Follow `event_sources` into the view of prefixes, which `/admin/kv-index/stats` shows. No policy asks it yet; the \
         block index (`kv_events`) does not need it.",
    ),
    key("backend", Kind::Word(&[word("memory"), word_later("redis")]), "memory", "Where the view is kept."),
    key(
        "max_entries",
        Kind::Int { min: 100, max: 10_000_000 },
        "100000",
        "Most prefixes; above, the oldest tenth goes.",
    ),
    key(
        "entry_ttl_seconds",
        Kind::Int { min: 1, max: 86_400 },
        "600",
        "A prefix that no event confirmed for this long is forgotten.",
    ),
    section(
        "scoring",
        &[
            key(
                "overlap_measure",
                Kind::Word(&[word("prompt_fraction"), word("relative_to_best")]),
                "prompt_fraction",
                "What an overlap is measured against.",
            )
            .later(),
            key("overlap_weight", RATIO, "0.6", "Weight of cached tokens.").later(),
            key("load_weight", RATIO, "0.3", "Weight of a low load.").later(),
            key("health_weight", RATIO, "0.1", "Weight of requests that succeeded.").later(),
            key("min_overlap_threshold", RATIO, "0.3", "Below this overlap the scores do not decide.").later(),
            key("gpu_tier_weight", RATIO, "1.0", "Weight of prefixes in GPU memory.").later(),
            key("storage_tier_weight", RATIO, "0.6", "Weight of prefixes in storage.").later(),
        ],
        "How backends are scored.",
    ),
    section(
        "storage_offloading",
        &[
            key("enabled", Kind::Bool, "false", "Keep what was offloaded as the second tier."),
            key(
                "treat_eviction_as_offload",
                Kind::Bool,
                "true",
                "What was evicted is in the second tier too; false = it is gone.",
            ),
        ],
        "Whether prefixes outside GPU memory count.",
    ),
    key(
        "event_sources",
        Kind::List(&Kind::Section(&[
            key("backend_name", Kind::Text, "~", "The worker whose cache the stream speaks of. Required."),
            key(
                "endpoint",
                Kind::Stream(&["http", "https", "ws", "wss"]),
                "~",
                "Where the stream is, as in `http://10.0.0.1:8000/v1/kv_events`. Required.",
            ),
            key(
                "reconnect_interval_ms",
                Kind::Int { min: 1, max: 60_000 },
                "5000",
                "The second wait before a stream is connected to again; the first is a second, later ones double to a minute.",
            ),
            key(
                "prefix_hash_kind",
                Kind::Word(&[word("prefix_key"), word("sequence_hash")]),
                "prefix_key",
                "What the stream's hashes are: of the text of a prefix, or of its blocks, as another warmroute has them.",
            ),
        ])),
        "[]",
        "Streams that name whole prefixes.",
    ),
];
