//! Converts that router's keys of clients, each with its limits.

use settings::{
    Value, ValueKind,
    kinds::{float, int},
};

use super::{
    Conversion, KeyMapping,
    keys::{COUNT, key},
    urls::any_url,
};
use crate::{
    converted_config::{SECRET_NOTE, quoted, yaml},
    source_config::{SourceField, UnreadFields},
};

const TENANTS: &str = "tenants.api_keys";
const SERVICES: &str = "tenants.key_validation";

const TENANT: &[KeyMapping] = &[
    key("name", "name", ValueKind::Text),
    key("key", "key", ValueKind::Secret),
    key("enabled", "enabled", ValueKind::Bool),
];

/// Limits of that router, of which 0 is none.
const LIMITS: &[(&str, ValueKind)] = &[
    ("rate_limit_rps", float(0.0, 1e6)),
    (
        "max_concurrent",
        match COUNT {
            ValueKind::Int { max, .. } => int(0, max),
            other => other,
        },
    ),
];

impl Conversion {
    pub(super) fn tenants(&mut self, top: &mut UnreadFields<'_>) {
        if let Some(keys) = top.take("api_keys") {
            self.list(TENANTS, &keys, Self::tenant);
            self.ours.note(TENANTS, SECRET_NOTE.to_owned());
        }
        if let Some(services) = top.take("api_key_validation_urls") {
            self.list(SERVICES, &services, Self::service);
        }
    }

    /// Returns one service that validates keys as YAML on a line.
    fn service(&mut self, entry: SourceField<'_>) -> Option<String> {
        let url = self.given.url(&entry, any_url)?;
        Some(format!("{{url: {}}}", quoted(&url)))
    }

    /// Returns one tenant as YAML on a line.
    fn tenant(&mut self, entry: SourceField<'_>) -> Option<String> {
        let mut fields = self.given.fields(&entry)?;
        let mut pairs = self.pairs(TENANT, &mut fields);
        for (name, kind) in LIMITS {
            let limit = fields
                .take(name)
                .and_then(|field| self.given.value(&field, kind));
            match limit {
                None | Some(Value::Int(0)) => {}
                Some(Value::Float(number)) if number <= 0.0 => {}
                Some(limit) => pairs.push(format!("{name}: {}", yaml(&limit))),
            }
        }
        if let Some(models) = fields.take("allowed_models") {
            pairs.push(format!("allowed_models: {}", self.texts(&models)));
        }
        if let Some(metadata) = self.section(&mut fields, "metadata") {
            pairs.push(format!("metadata: {{{}}}", self.notes(metadata)));
        }
        self.given.leave(fields);
        Some(format!("{{{}}}", pairs.join(", ")))
    }

    /// Returns the entries of a mapping of texts.
    fn notes(&mut self, mut metadata: UnreadFields<'_>) -> String {
        let mut pairs = Vec::new();
        for name in metadata.names() {
            let field = metadata.take(&name);
            let text = field.and_then(|field| self.given.value(&field, &ValueKind::Text));
            pairs.extend(text.map(|text| format!("{}: {}", quoted(&name), yaml(&text))));
        }
        pairs.join(", ")
    }
}
