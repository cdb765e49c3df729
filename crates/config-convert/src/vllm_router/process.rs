//! Converts settings of the process: those of a file, and those that only flags set, under keys of
//! their own.

use settings::{
    Value, ValueKind,
    kinds::{float, int},
    word, word_or,
};

use super::{
    Conversion, KeyMapping,
    keys::{SECONDS, SECONDS_OR_ZERO, TOKENS_OF_A_BLOCK, key},
};
use crate::{
    converted_config::{quoted, yaml},
    source_config::UnreadFields,
};

/// Log levels of both routers.
const LEVEL: ValueKind = ValueKind::Word(&[
    word("trace"),
    word("debug"),
    word("info"),
    word_or("warn", &["warning"]),
    word_or("error", &["critical"]),
]);

const PROCESS: &[KeyMapping] = &[
    key("request_timeout_secs", "request.timeout", SECONDS).unit("s"),
    key("max_payload_size", "server.max_body_bytes", int(1, 4 << 30)),
    key("queue_timeout_secs", "queue.wait", SECONDS).unit("s"),
    key("log_level", "logging.level", LEVEL),
];

const DECISION_LOG: &[KeyMapping] = &[
    key("export_path", "decisions.log.path", ValueKind::Text),
    key("export_interval_secs", "decisions.log.interval", SECONDS).unit("s"),
    key(
        "include_request_text",
        "decisions.log.include_request_text",
        ValueKind::Bool,
    ),
];

/// Keys that stand for flags, and are in no file.
const FLAGS: &[KeyMapping] = &[
    key(
        "block_size",
        "models.defaults.block_size",
        TOKENS_OF_A_BLOCK,
    ),
    key(
        "chat_template",
        "models.defaults.chat_template",
        ValueKind::Text,
    ),
    key("temperature", "routing.temperature", float(0.0, 10.0)),
    key(
        "health_checks_enabled",
        "health_checks.enabled",
        ValueKind::Bool,
    ),
    key(
        "shutdown_grace_period_secs",
        "server.drain_timeout",
        SECONDS_OR_ZERO,
    )
    .unit("s"),
    key("idle_connection_timeout_secs", "server.keep_alive", SECONDS).unit("s"),
    key("header_read_timeout_secs", "server.head_timeout", SECONDS).unit("s"),
    key("log_format", "logging.format", ValueKind::Text),
];

impl Conversion {
    pub(super) fn process(&mut self, top: &mut UnreadFields<'_>) {
        self.keys(PROCESS, top);
        self.queue(top);
        if let Some(mut log) = self.section(top, "decision_log") {
            self.keys(DECISION_LOG, &mut log);
            self.ours.note(
                "decisions.log.path",
                "`warmroute replay` needs decisions.log.chains".to_owned(),
            );
            self.given.leave(log);
        }
        let field = top.take("expose_routing_headers");
        let place = top.place("expose_routing_headers", field.as_ref());
        let exposed = field.and_then(|field| self.given.value(&field, &ValueKind::Bool));
        if let Some(Value::Bool(exposed)) = exposed {
            self.set("compat.expose_routing_headers", exposed.to_string(), &place);
            if exposed {
                self.set("compat.headers", "[vllm-router]".to_owned(), &place);
            }
        }
    }

    /// Converts the size of the queue; 0 is no queue.
    fn queue(&mut self, top: &mut UnreadFields<'_>) {
        let Some(field) = top.take("queue_size") else {
            return;
        };
        match self.given.value(&field, &int(0, 10_000_000)) {
            Some(Value::Int(0)) => self.set("queue.enabled", "false".to_owned(), &field.place()),
            Some(size) => self.set("queue.max_entries", yaml(&size), &field.place()),
            None => {}
        }
    }

    pub(super) fn flags(&mut self, top: &mut UnreadFields<'_>) {
        self.keys(FLAGS, top);
        let Some(aliases) = top.take("model_aliases") else {
            return;
        };
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
            &aliases.place(),
        );
    }
}
