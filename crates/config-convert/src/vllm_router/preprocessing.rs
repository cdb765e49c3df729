//! Converts that router's steps before routing: rules for model names, and hooks.

use settings::{Value, ValueKind};

use super::{
    Conversion, KeyMapping,
    keys::{MILLISECONDS, key},
    urls::any_url,
};
use crate::{
    converted_config::quoted,
    source_config::{SourceField, UnreadFields},
};

const RULES: &str = "models.rules";
const HOOKS: &str = "pre_routing_hooks";

const RULE: &[KeyMapping] = &[
    key("match", "match", ValueKind::Text),
    key("rewrite", "rewrite", ValueKind::Text),
];

const HOOK: &[KeyMapping] = &[
    key("name", "name", ValueKind::Text),
    key("timeout_ms", "timeout", MILLISECONDS)
        .unit("ms")
        .or("200ms"),
];

/// What a hook of that router can do about its own failure, and ours.
const ON_ERROR: &[(&str, &str)] = &[("pass", "allow"), ("block", "reject")];
/// Statuses of a rejection. The documents spell these words in two ways.
const ON_REJECT: &[(&str, &str)] = &[
    ("block403", "403"),
    ("block_403", "403"),
    ("block400", "400"),
    ("block_400", "400"),
    ("pass", IGNORED),
];
/// A rejection is ignored, which no setting of ours does.
const IGNORED: &str = "";

impl Conversion {
    pub(super) fn preprocessing(&mut self, top: &mut UnreadFields<'_>) {
        if let Some(rules) = top.take("model_rules") {
            self.list(RULES, &rules, Self::model_rule);
        }
        if let Some(hooks) = top.take("pre_routing_hooks") {
            self.list(HOOKS, &hooks, Self::hook);
            let differences = "a hook gets {request_id, route, model, body} here, and its answer \
                               may always transform the body: docs/hooks.md";
            self.ours.note(HOOKS, differences.to_owned());
        }
    }

    /// Returns one rule as YAML on a line.
    fn model_rule(&mut self, entry: SourceField<'_>) -> Option<String> {
        let mut fields = self.given.fields(&entry)?;
        let mut pairs = self.pairs(RULE, &mut fields);
        if let Some(fallback) = fields.take("fallback") {
            if pairs.iter().any(|pair| pair.starts_with("rewrite")) {
                self.given
                    .unused_because(fallback, "a rule that rewrites never uses it there");
            } else {
                pairs.push(format!("fallback: {}", self.texts(&fallback)));
            }
        }
        self.given.leave(fields);
        Some(format!("{{{}}}", pairs.join(", ")))
    }

    /// Returns one hook as YAML on a line; `None` for one whose rejections count for nothing, since
    /// ours would reject.
    fn hook(&mut self, entry: SourceField<'_>) -> Option<String> {
        let mut fields = self.given.fields(&entry)?;
        let mut pairs = self.pairs(HOOK, &mut fields);
        if let Some(field) = fields.take("url")
            && let Some(url) = self.given.url(&field, any_url)
        {
            pairs.push(format!("url: {}", quoted(&url)));
        }
        let on_error = self.translated(fields.take("on_error"), ON_ERROR, "allow");
        pairs.push(format!("on_error: {on_error}"));
        let status = self.translated(fields.take("on_reject"), ON_REJECT, "403");
        pairs.push(format!("on_reject: {{status: {status}}}"));
        if let Some(transform) = fields.take("transform")
            && self.given.value(&transform, &ValueKind::Bool) == Some(Value::Bool(false))
        {
            self.given.unused(transform);
        }
        if status == IGNORED {
            self.given.unused_because(
                entry,
                "its rejections are ignored there, and would count here",
            );
            return None;
        }
        self.given.leave(fields);
        Some(format!("{{{}}}", pairs.join(", ")))
    }

    /// Returns our word for one of theirs.
    fn translated(
        &mut self,
        field: Option<SourceField<'_>>,
        words: &'static [(&'static str, &'static str)],
        default: &'static str,
    ) -> &'static str {
        let Some(field) = field else { return default };
        let Some(Value::Text(text)) = self.given.value(&field, &ValueKind::Text) else {
            return default;
        };
        if let Some((_, ours)) = words.iter().find(|(theirs, _)| *theirs == text) {
            return ours;
        }
        let known: Vec<&str> = words.iter().map(|(theirs, _)| *theirs).collect();
        self.given.refuse_word(&field, &known.join(", "));
        default
    }

    /// Returns the simple keys of an entry, each as `KEY: VALUE`.
    pub(super) fn pairs(
        &mut self,
        keys: &[KeyMapping],
        fields: &mut UnreadFields<'_>,
    ) -> Vec<String> {
        self.values(keys, fields)
            .into_iter()
            .map(|(ours, value, _)| format!("{ours}: {value}"))
            .collect()
    }
}
