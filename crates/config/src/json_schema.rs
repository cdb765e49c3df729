//! Renders the table as JSON Schema, for editors.

use serde_json::{Map, Value as Json, json};
use settings::{Availability, KeySchema, ValueKind, WordChoice};

use crate::schema::{ROOT, TOP_ALIASES};

/// Returns the JSON Schema (draft 2020-12) of the configuration file. Keys that this version does
/// not support are left out: a file that sets them is refused.
pub fn schema() -> Json {
    let mut schema = section(ROOT);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "warmroute configuration".into();
    for (alias, path) in TOP_ALIASES {
        let known = path
            .iter()
            .try_fold(&schema, |at, key| at["properties"].get(*key))
            .cloned();
        if let Some(known) = known {
            schema["properties"][*alias] = known;
        }
    }
    schema
}

fn section(keys: &[KeySchema]) -> Json {
    let properties: Map<_, _> = keys
        .iter()
        .filter(|key| !key.is_later())
        .map(|key| (key.name.to_owned(), property(key)))
        .collect();
    json!({"type": ["object", "null"], "additionalProperties": false, "properties": properties})
}

fn property(key: &KeySchema) -> Json {
    let mut schema = kind(&key.kind);
    schema["description"] = key.doc.into();
    if !matches!(key.kind, ValueKind::Section(_)) && !matches!(key.default, "~" | "") {
        schema["default"] = settings::CheckedValue::default_of(settings::default_of(key)).shown();
    }
    schema
}

fn kind(kind_: &ValueKind) -> Json {
    match *kind_ {
        ValueKind::Bool => json!({"type": "boolean"}),
        ValueKind::Int { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        ValueKind::Counted { min, max, .. } => {
            json!({"type": ["integer", "string"], "minimum": min, "maximum": max})
        }
        ValueKind::Float(range) if range.open => {
            json!({"type": "number", "exclusiveMinimum": range.min, "maximum": range.max})
        }
        ValueKind::Float(range) => {
            json!({"type": "number", "minimum": range.min, "maximum": range.max})
        }
        ValueKind::Duration { .. } => json!({"type": ["string", "number"], "minimum": 0}),
        ValueKind::Size { min, max } => {
            json!({"type": ["string", "integer"], "minimum": min, "maximum": max})
        }
        ValueKind::HeaderName => {
            json!({"type": "string", "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"})
        }
        ValueKind::UrlPath => json!({"type": "string", "pattern": "^/"}),
        ValueKind::Endpoint => json!({"type": "string", "pattern": "^(tcp|ipc)://"}),
        ValueKind::Stream(schemes) => {
            json!({"type": "string", "pattern": format!("^({})://", schemes.join("|"))})
        }
        ValueKind::RedisUrl => json!({"type": "string", "pattern": r"^rediss?(\+sentinel)?://"}),
        ValueKind::KeyPrefix { max } => json!({"type": "string", "minLength": 1, "maxLength": max}),
        ValueKind::Text
        | ValueKind::Path
        | ValueKind::WorkerUrl
        | ValueKind::Listen
        | ValueKind::AddressRange
        | ValueKind::WebOrigin
        | ValueKind::Secret => {
            json!({"type": "string"})
        }
        ValueKind::Word(choices) => json!({"enum": words(choices)}),
        ValueKind::WordOr(choices, other) => {
            let words = words(choices);
            if words.is_empty() {
                kind(other)
            } else {
                json!({"anyOf": [{"enum": words}, kind(other)]})
            }
        }
        ValueKind::Free => json!({}),
        ValueKind::List(item) => json!({"type": "array", "items": kind(item)}),
        ValueKind::Map(value) => json!({"type": "object", "additionalProperties": kind(value)}),
        ValueKind::Section(keys) => section(keys),
        ValueKind::Worker(keys) => {
            let mut mapping = section(keys);
            mapping["type"] = "object".into();
            mapping["required"] = json!(["url"]);
            json!({"anyOf": [{"type": "string"}, mapping]})
        }
    }
}

fn words(choices: &[WordChoice]) -> Vec<&'static str> {
    choices
        .iter()
        .filter(|choice| choice.built == Availability::Now)
        .map(|choice| choice.word)
        .collect()
}
