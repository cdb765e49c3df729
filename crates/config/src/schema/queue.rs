//! The section about queued requests.

use super::{
    KeySchema, Range, ValueKind, key,
    kinds::{SECONDS, SECONDS_OR_ZERO, size},
};

pub(super) const QUEUE: &[KeySchema] = &[
    key(
        "enabled",
        ValueKind::Bool,
        "true",
        "Requests wait here while workers that may take them are busy.",
    ),
    key(
        "wait",
        SECONDS,
        "30s",
        "How long, at most. Then a worker gets the request whatever it has to compute; while all are above \
         `routing.busy_threshold` it is refused.",
    ),
    key(
        "engine_wait_timeout_secs",
        SECONDS_OR_ZERO,
        "0",
        "How long a request waits while no worker can be used at all; 0 = it is refused at once.",
    ),
    key(
        "max_entries",
        ValueKind::Int {
            min: 1,
            max: 10_000_000,
        },
        "10000",
        "Most requests that wait.",
    ),
    key(
        "max_bytes",
        size(1 << 10, 1 << 50),
        "512MiB",
        "Most bytes that they keep: bodies, prompts and lists of workers.",
    ),
    key(
        "hold_above",
        SECONDS_OR_ZERO,
        "25ms",
        "Policy `warm` binds a request late: a worker with more than this to compute is not given another.",
    ),
    key(
        "ageing",
        ValueKind::Float(Range {
            min: 0.0,
            max: 100.0,
            open: false,
        }),
        "0.05",
        "The shortest prompt goes first; each millisecond waited makes up for so many milliseconds of prefill.",
    ),
    key(
        "engine_priority",
        ValueKind::Bool,
        "false",
        "Tell vLLM workers that order too, as each request's `priority`. They have to run with `--scheduling-policy \
         priority`, or refuse such requests.",
    ),
];
