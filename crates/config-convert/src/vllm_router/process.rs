//! Converts settings of the process that only flags set, under keys of their own.

use settings::{MAX_DURATION, Range, ValueKind, word, word_or};

use super::{Conversion, KeyMapping, key};
use crate::{
    converted_config::{quoted, yaml},
    source_config::UnreadFields,
};

const SECONDS: ValueKind = ValueKind::Int {
    min: 1,
    max: MAX_DURATION.as_secs(),
};
const SECONDS_OR_ZERO: ValueKind = ValueKind::Int {
    min: 0,
    max: MAX_DURATION.as_secs(),
};

/// Log levels of both routers.
const LEVEL: ValueKind = ValueKind::Word(&[
    word("debug"),
    word("info"),
    word_or("warn", &["warning"]),
    word_or("error", &["critical"]),
]);

const PROCESS: &[KeyMapping] = &[
    key(
        "block_size",
        "models.defaults.block_size",
        ValueKind::Int {
            min: 1,
            max: 1 << 16,
        },
    ),
    key(
        "chat_template",
        "models.defaults.chat_template",
        ValueKind::Text,
    ),
    key(
        "temperature",
        "routing.temperature",
        ValueKind::Float(Range {
            min: 0.0,
            max: 10.0,
            open: false,
        }),
    ),
    key(
        "health_checks_enabled",
        "health_checks.enabled",
        ValueKind::Bool,
    ),
    key(
        "cb_failure_threshold",
        "circuit_breaker.consecutive_failures",
        ValueKind::Int {
            min: 1,
            max: 1_000_000,
        },
    ),
    KeyMapping {
        unit: "s",
        ..key(
            "cb_timeout_duration_secs",
            "circuit_breaker.ejection",
            SECONDS,
        )
    },
    key(
        "circuit_breaker_enabled",
        "circuit_breaker.enabled",
        ValueKind::Bool,
    ),
    KeyMapping {
        unit: "s",
        ..key("request_timeout_secs", "request.timeout", SECONDS)
    },
    key(
        "max_payload_size",
        "server.max_body_bytes",
        ValueKind::Int {
            min: 1,
            max: 4 << 30,
        },
    ),
    KeyMapping {
        unit: "s",
        ..key(
            "shutdown_grace_period_secs",
            "server.drain_timeout",
            SECONDS_OR_ZERO,
        )
    },
    KeyMapping {
        unit: "s",
        ..key("idle_connection_timeout_secs", "server.keep_alive", SECONDS)
    },
    KeyMapping {
        unit: "s",
        ..key("header_read_timeout_secs", "server.head_timeout", SECONDS)
    },
    key(
        "queue_size",
        "queue.max_entries",
        ValueKind::Int {
            min: 1,
            max: 10_000_000,
        },
    ),
    KeyMapping {
        unit: "s",
        ..key("queue_timeout_secs", "queue.wait", SECONDS)
    },
    key("log_level", "logging.level", LEVEL),
    key("log_format", "logging.format", ValueKind::Text),
];

impl Conversion {
    pub(super) fn process(&mut self, top: &mut UnreadFields<'_>) {
        self.keys(PROCESS, top);
        let Some(aliases) = top.take("model_aliases") else {
            return;
        };
        let place = (aliases.path.clone(), aliases.value.origin.clone());
        let Some(mut fields) = self.given.fields(&aliases) else {
            return;
        };
        let mut pairs = Vec::new();
        for name in fields.names() {
            let model = fields
                .take(&name)
                .and_then(|model| self.given.value(&model, &ValueKind::Text));
            if let Some(model) = model {
                pairs.push(format!("{}: {}", quoted(&name), yaml(&model)));
            }
        }
        self.set(
            "models.aliases",
            format!("{{{}}}", pairs.join(", ")),
            &place,
        );
    }
}
