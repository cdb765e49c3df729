//! The table as JSON Schema, for editors.

use serde_json::{Map, Value as Json, json};

use super::{Built, Choice, Key, Kind, ROOT, TOP_ALIASES};

/// JSON Schema (draft 2020-12) of the configuration file. Keys that this version does not act on are left out: a file
/// that sets them is refused.
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

fn section(keys: &[Key]) -> Json {
    let properties: Map<_, _> = keys
        .iter()
        .filter(|key| !key.is_later())
        .map(|key| (key.name.to_owned(), property(key)))
        .collect();
    json!({"type": ["object", "null"], "additionalProperties": false, "properties": properties})
}

fn property(key: &Key) -> Json {
    let mut schema = kind(&key.kind);
    schema["description"] = key.doc.into();
    if !matches!(key.kind, Kind::Section(_)) && !matches!(key.default, "~" | "") {
        schema["default"] =
            crate::checked::Checked::default_of(crate::value::default_of(key)).shown();
    }
    schema
}

fn kind(kind_: &Kind) -> Json {
    match *kind_ {
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Int { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::Counted { min, max, .. } => {
            json!({"type": ["integer", "string"], "minimum": min, "maximum": max})
        }
        Kind::Float(range) if range.open => {
            json!({"type": "number", "exclusiveMinimum": range.min, "maximum": range.max})
        }
        Kind::Float(range) => json!({"type": "number", "minimum": range.min, "maximum": range.max}),
        Kind::Duration { .. } => json!({"type": ["string", "number"], "minimum": 0}),
        Kind::Size { min, max } => {
            json!({"type": ["string", "integer"], "minimum": min, "maximum": max})
        }
        Kind::HeaderName => json!({"type": "string", "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"}),
        Kind::UrlPath => json!({"type": "string", "pattern": "^/"}),
        Kind::Endpoint => json!({"type": "string", "pattern": "^(tcp|ipc)://"}),
        Kind::Stream(schemes) => {
            json!({"type": "string", "pattern": format!("^({})://", schemes.join("|"))})
        }
        Kind::RedisUrl => json!({"type": "string", "pattern": "^rediss?://"}),
        Kind::KeyPrefix { max } => json!({"type": "string", "minLength": 1, "maxLength": max}),
        Kind::Text | Kind::Path | Kind::WorkerUrl | Kind::Listen | Kind::Secret => {
            json!({"type": "string"})
        }
        Kind::Word(choices) => json!({"enum": words(choices)}),
        Kind::WordOr(choices, other) => {
            let words = words(choices);
            if words.is_empty() {
                kind(other)
            } else {
                json!({"anyOf": [{"enum": words}, kind(other)]})
            }
        }
        Kind::Free => json!({}),
        Kind::List(item) => json!({"type": "array", "items": kind(item)}),
        Kind::Map(value) => json!({"type": "object", "additionalProperties": kind(value)}),
        Kind::Section(keys) => section(keys),
        Kind::Worker(keys) => {
            let mut mapping = section(keys);
            mapping["type"] = "object".into();
            mapping["required"] = json!(["url"]);
            json!({"anyOf": [{"type": "string"}, mapping]})
        }
    }
}

fn words(choices: &[Choice]) -> Vec<&'static str> {
    choices
        .iter()
        .filter(|choice| choice.built == Built::Now)
        .map(|choice| choice.word)
        .collect()
}
