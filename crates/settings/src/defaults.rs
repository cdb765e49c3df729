//! Defaults of keys, read from their declarations.

use crate::{
    CheckedValue, KeySchema, LocatedValue, Value, ValueKind, ValueNode, ValueOrigin, parse::scalar,
};

impl CheckedValue {
    /// Returns a section with the defaults of its keys.
    pub fn defaults(keys: &'static [KeySchema]) -> Self {
        let value = |key: &'static KeySchema| match key.kind {
            ValueKind::Section(keys) => Self::defaults(keys),
            _ => Self::default_of(default_of(key)),
        };
        Self::default_of(Value::Map(
            keys.iter()
                .map(|key| (key.name.to_owned(), value(key)))
                .collect(),
        ))
    }
}

/// Returns a key's default from the table.
pub fn default_of(key: &KeySchema) -> Value {
    of_default_text(&key.kind, key.default)
}

fn of_default_text(kind: &ValueKind, text: &str) -> Value {
    match (kind, text) {
        (_, "~") => Value::Unset,
        (ValueKind::List(item), list) => {
            let list = list.trim_start_matches('[').trim_end_matches(']');
            let items = list.split(", ").filter(|text| !text.is_empty());
            Value::List(
                items
                    .map(|text| CheckedValue::default_of(of_default_text(item, text)))
                    .collect(),
            )
        }
        (ValueKind::Map(_) | ValueKind::Section(_), _) => Value::Map(Vec::new()),
        (kind, text) => {
            let given = LocatedValue {
                node: ValueNode::Loose(text.to_owned().into()),
                origin: ValueOrigin::Named(String::new()),
            };
            scalar(kind, &given, &given, |_| Err(String::new()))
                .expect("a test reads every default of the table")
        }
    }
}
