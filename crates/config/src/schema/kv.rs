//! The sections about KV events and predictions.

use super::{
    KeySchema, ValueKind, key,
    kinds::{ANY_INT, AUTO, PORT, RATIO, SECONDS, section, size},
    word, word_later,
};

pub(super) const KV_EVENTS: &[KeySchema] = &[
    key(
        "enabled",
        ValueKind::Bool,
        "true",
        "Follow the engines' KV events.",
    ),
    key(
        "memory_budget",
        size(1 << 20, 1 << 50),
        "512MiB",
        "Memory that the block index may use.",
    ),
    key(
        "snapshot",
        ValueKind::Path,
        "~",
        "File that keeps the index over a restart.",
    )
    .later(),
    key(
        "block_hash",
        ValueKind::Word(&[word("xxh3"), word("fnv1a"), word_later("keyed")]),
        "xxh3",
        "How block hashes are computed.",
    ),
    key("block_hash_seed", ANY_INT, "1337", "Seed of `xxh3`."),
    key(
        "default_port",
        PORT,
        "5557",
        "Port of the event stream where an engine does not announce one.",
    ),
    key(
        "topic_filter",
        ValueKind::Text,
        "",
        "Only messages whose topic starts with this.",
    ),
    key(
        "replay",
        ValueKind::Bool,
        "true",
        "Ask for missed events where the engine keeps them.",
    ),
    key(
        "max_message",
        size(1 << 10, 1 << 30),
        "64MiB",
        "Longest message; a longer one ends the connection.",
    ),
    key(
        "queue_batches",
        ValueKind::Int {
            min: 1,
            max: 1 << 24,
        },
        "65536",
        "Most batches waiting per stream.",
    ),
    key(
        "max_events_per_second",
        ValueKind::Int {
            min: 1,
            max: 1_000_000_000,
        },
        "1000000",
        "Most events taken per second and stream.",
    )
    .later(),
    key(
        "stale_after",
        SECONDS,
        "60s",
        "A stream without a message is called stale after this.",
    ),
    section(
        "prediction",
        &[
            key(
                "ttl",
                SECONDS,
                "120s",
                "A predicted block is forgotten after this.",
            ),
            key(
                "max_blocks",
                ValueKind::Int {
                    min: 1,
                    max: 1 << 40,
                },
                "1048576",
                "Most predicted blocks.",
            ),
            key(
                "prune_target_ratio",
                RATIO,
                "0.8",
                "When there are more, the oldest go until this share is left.",
            ),
        ],
        "The cache of workers without events, predicted from our own decisions.",
    ),
];

pub(super) const WORKER_KV_EVENTS: &[KeySchema] = &[
    key(
        "source",
        ValueKind::Word(&[
            word("auto"),
            word("zmq"),
            word("none"),
            word("sse"),
            word("ws"),
            word("poll"),
            word("nats"),
        ]),
        "auto",
        "Which kind of stream. `auto` = as `endpoint` says, else ZMQ; `sse` and `ws` = standard events (RFC 1527) over HTTP or \
         a WebSocket; `poll` = TensorRT-LLM's list, which may have one asker only; `nats` = what `warmroute events relay` \
         publishes; `none` = its cache is predicted from our own decisions.",
    ),
    key(
        "endpoint",
        ValueKind::WordOr(
            AUTO,
            &ValueKind::Stream(&["tcp", "ipc", "http", "https", "ws", "wss", "nats", "tls"]),
        ),
        "auto",
        "Where the stream is: `tcp://`, `ipc://` (ZMQ), `http(s)://`, `ws(s)://`, or `nats://HOST:PORT/SUBJECT` (`tls://` if \
         encrypted; each of several ranks has a subject of its own, `SUBJECT.RANK`). `auto` = asked of the engine, else its \
         host at `kv_events.default_port`.",
    ),
    key(
        "replay_endpoint",
        ValueKind::WordOr(&[word("auto"), word("none")], &ValueKind::Endpoint),
        "auto",
        "Where missed events can be asked for.",
    ),
    key(
        "topic",
        ValueKind::Text,
        "",
        "Only messages whose topic starts with this; empty = `kv_events.topic_filter`.",
    ),
    key(
        "bind",
        ValueKind::Bool,
        "false",
        "Listen at `endpoint`, for each further rank at the next port, and let the engine connect. Workers may share an endpoint: a message belongs to the one whose \
         `topic` it begins with, or which it names as `kv@NAME@MODEL` or `kv@HOST:PORT@MODEL`.",
    ),
    key(
        "token_file",
        ValueKind::Path,
        "~",
        "File with what the stream's sender wants to see: a bearer token (`sse`, `ws`), or NATS credentials or a token (`nats`).",
    ),
];
