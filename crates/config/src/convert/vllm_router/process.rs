//! Settings of the process that only flags set, under keys of their own.

use super::{Key, Work, key};
use crate::{
    convert::{
        given::Fields,
        ours::{quoted, yaml},
    },
    scalar::MAX_DURATION,
    schema::{Built, Choice, Kind, Range},
};

const SECONDS: Kind = Kind::Int {
    min: 1,
    max: MAX_DURATION.as_secs(),
};
const SECONDS_OR_ZERO: Kind = Kind::Int {
    min: 0,
    max: MAX_DURATION.as_secs(),
};

/// As both routers have them.
const LEVEL: Kind = Kind::Word(&[
    level("debug", &[]),
    level("info", &[]),
    level("warn", &["warning"]),
    level("error", &["critical"]),
]);

const fn level(word: &'static str, also: &'static [&'static str]) -> Choice {
    Choice {
        word,
        also,
        built: Built::Now,
    }
}

const PROCESS: &[Key] = &[
    key(
        "block_size",
        "models.defaults.block_size",
        Kind::Int {
            min: 1,
            max: 1 << 16,
        },
    ),
    key("chat_template", "models.defaults.chat_template", Kind::Text),
    key(
        "temperature",
        "routing.temperature",
        Kind::Float(Range {
            min: 0.0,
            max: 10.0,
            open: false,
        }),
    ),
    key("health_checks_enabled", "health_checks.enabled", Kind::Bool),
    key(
        "cb_failure_threshold",
        "circuit_breaker.consecutive_failures",
        Kind::Int {
            min: 1,
            max: 1_000_000,
        },
    ),
    Key {
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
        Kind::Bool,
    ),
    Key {
        unit: "s",
        ..key("request_timeout_secs", "request.timeout", SECONDS)
    },
    key(
        "max_payload_size",
        "server.max_body_bytes",
        Kind::Int {
            min: 1,
            max: 4 << 30,
        },
    ),
    Key {
        unit: "s",
        ..key(
            "shutdown_grace_period_secs",
            "server.drain_timeout",
            SECONDS_OR_ZERO,
        )
    },
    Key {
        unit: "s",
        ..key("idle_connection_timeout_secs", "server.keep_alive", SECONDS)
    },
    Key {
        unit: "s",
        ..key("header_read_timeout_secs", "server.head_timeout", SECONDS)
    },
    key(
        "queue_size",
        "queue.max_entries",
        Kind::Int {
            min: 1,
            max: 10_000_000,
        },
    ),
    Key {
        unit: "s",
        ..key("queue_timeout_secs", "queue.wait", SECONDS)
    },
    key("log_level", "logging.level", LEVEL),
    key("log_format", "logging.format", Kind::Text),
];

impl Work {
    pub(super) fn process(&mut self, top: &mut Fields<'_>) {
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
                .and_then(|model| self.given.value(&model, &Kind::Text));
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
