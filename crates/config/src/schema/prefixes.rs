//! The sections about prompt prefixes: the ring, and the view of prefixes by backend.

use super::{
    KeySchema, Range, Unit, ValueKind, key,
    kinds::{RATIO, section},
    word,
};

pub(super) const PREFIX_ROUTING: &[KeySchema] = &[
    key(
        "enabled",
        ValueKind::Bool,
        "false",
        "Requests with the same beginning go to the same worker (policy `continuum`), unless `routing.policy` says otherwise.",
    ),
    key(
        "max_prefix_length",
        ValueKind::Int {
            min: 1,
            max: 1 << 20,
        },
        "1024",
        "Bytes of the system prompt, or else of the first message, that two requests must have in common.",
    ),
    key(
        "load_factor_epsilon",
        ValueKind::Float(Range {
            min: 0.01,
            max: 10.0,
            open: false,
        }),
        "0.25",
        "A worker gets no more than its share of requests in flight times 1 + this; beyond it the next on the ring does.",
    ),
    key(
        "virtual_nodes",
        ValueKind::Int {
            min: 1,
            max: 10_000,
        },
        "150",
        "Points of each worker on the ring.",
    ),
    key(
        "anthropic_cache_control_injection",
        ValueKind::Bool,
        "false",
        "Mark the system prompts of messages as cacheable, for workers that take messages themselves.",
    ),
    key(
        "strip_volatile_prefix",
        ValueKind::Bool,
        "false",
        "Take out the line that Claude Code puts before its system prompt and changes with every request: prompts of one kind \
         begin alike then, in engines too.",
    ),
];

pub(super) const KV_CACHE_INDEX: &[KeySchema] = &[
    key(
        "enabled",
        ValueKind::Bool,
        "false",
        "Follow `event_sources` into the view of prefixes, which `composite` and `continuum` go by. The block index \
         (`kv_events`) does not need it.",
    ),
    key(
        "backend",
        ValueKind::Word(&[word("memory"), word("redis")]),
        "memory",
        "Where the view is kept; `redis` = in the server of `response_cache.redis`, where routers share it.",
    ),
    key(
        "max_entries",
        ValueKind::Int {
            min: 100,
            max: 10_000_000,
        },
        "100000",
        "Most prefixes; above, the oldest tenth goes.",
    ),
    key(
        "entry_ttl_seconds",
        ValueKind::Counted {
            unit: Unit::Seconds,
            min: 1,
            max: 86_400,
        },
        "600",
        "A prefix that no event confirmed for this long is forgotten.",
    ),
    section(
        "scoring",
        &[
            key(
                "overlap_measure",
                ValueKind::Word(&[word("prompt_fraction"), word("relative")]),
                "prompt_fraction",
                "What an overlap is measured against.",
            ),
            key("overlap_weight", RATIO, "0.6", "Weight of cached tokens."),
            key("load_weight", RATIO, "0.3", "Weight of a low load."),
            key(
                "health_weight",
                RATIO,
                "0.1",
                "Weight of requests that succeeded.",
            ),
            key(
                "min_overlap_threshold",
                RATIO,
                "0.3",
                "Below this overlap the scores do not decide.",
            ),
            key(
                "gpu_tier_weight",
                RATIO,
                "1.0",
                "Weight of prefixes in GPU memory.",
            ),
            key(
                "storage_tier_weight",
                RATIO,
                "0.6",
                "Weight of prefixes in storage.",
            ),
        ],
        "How backends are scored, by policies `composite` and `continuum`; the three weights of overlap, load and health make 1.",
    ),
    section(
        "storage_offloading",
        &[
            key(
                "enabled",
                ValueKind::Bool,
                "false",
                "Keep what was offloaded as the second tier.",
            ),
            key(
                "treat_eviction_as_offload",
                ValueKind::Bool,
                "true",
                "What was evicted is in the second tier too; false = it is gone.",
            ),
        ],
        "Whether prefixes outside GPU memory count.",
    ),
    key(
        "event_sources",
        ValueKind::List(&ValueKind::Section(&[
            key(
                "backend_name",
                ValueKind::Text,
                "~",
                "The worker whose cache the stream speaks of. Required.",
            ),
            key(
                "endpoint",
                ValueKind::Stream(&["http", "https", "ws", "wss"]),
                "~",
                "Where the stream is, as in `http://10.0.0.1:8000/v1/kv_events`. Required.",
            ),
            key(
                "reconnect_interval_ms",
                ValueKind::Counted {
                    unit: Unit::Milliseconds,
                    min: 1,
                    max: 60_000,
                },
                "5000",
                "The second wait before a stream is connected to again; the first is a second, later ones double to a minute.",
            ),
            key(
                "prefix_hash_kind",
                ValueKind::Word(&[word("prefix_key"), word("sequence_hash")]),
                "prefix_key",
                "What the stream's hashes are: of the text of a prefix, or of its blocks, as another warmroute has them.",
            ),
        ])),
        "[]",
        "Streams that name whole prefixes.",
    ),
];
