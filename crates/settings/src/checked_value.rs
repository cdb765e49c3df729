//! The configuration after the walk against the schema: every key present, every value of its kind.
//!
//! Wrong values are replaced by their defaults, marked [`CheckedValue::failed`], so that the checks
//! between keys can still run and report problems.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use crate::{ListenSetting, RedisUrl, Secret, Unit, notation, tree::ValueOrigin};

/// A value of its kind, and its origin.
#[derive(Clone, Debug)]
pub struct CheckedValue {
    /// The value.
    pub value: Value,
    /// `None` = the default.
    pub origin: Option<ValueOrigin>,
    /// Whether a problem was reported for it.
    pub failed: bool,
}

/// A value of one of the kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value.
    Unset,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(u64),
    /// A whole number of a unit.
    Counted {
        /// The number.
        count: u64,
        /// Its unit.
        unit: Unit,
    },
    /// A number.
    Float(f64),
    /// A duration.
    Duration(Duration),
    /// A number of bytes.
    Size(u64),
    /// A text, path or address.
    Text(String),
    /// One of the schema's own words.
    Word(&'static str),
    /// The URL of a worker.
    WorkerUrl {
        /// The URL as written.
        url: String,
        /// Its host and port.
        host_port: String,
    },
    /// An address to listen on.
    Listen(ListenSetting),
    /// A secret.
    Secret(Secret),
    /// The address of a Redis server.
    RedisUrl(RedisUrl),
    /// Any value.
    Free(Json),
    /// A list.
    List(Vec<CheckedValue>),
    /// A section, or names of the user's choice.
    Map(Vec<(String, CheckedValue)>),
}

impl PartialEq for CheckedValue {
    /// Compares values only, not their origins.
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl CheckedValue {
    /// Returns a value that no source set.
    pub fn default_of(value: Value) -> Self {
        Self {
            value,
            origin: None,
            failed: false,
        }
    }

    /// Returns whether a source set the value.
    pub fn is_set(&self) -> bool {
        self.origin.is_some()
    }

    /// Returns the value under a key of a section. The walk filled in every key of the table.
    pub fn key(&self, name: &str) -> &Self {
        self.entries()
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
            .expect("the schema table has this key")
    }

    /// Returns the value under a key of a section.
    pub fn key_mut(&mut self, name: &str) -> &mut Self {
        let Value::Map(entries) = &mut self.value else {
            unreachable!("the schema makes this a section")
        };
        entries
            .iter_mut()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
            .expect("the schema table has this key")
    }

    /// Returns the entries of a section or map.
    pub fn entries(&self) -> &[(String, Self)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the items of a list.
    pub fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// Returns the items of a list.
    pub fn items_mut(&mut self) -> &mut [Self] {
        match &mut self.value {
            Value::List(items) => items,
            _ => &mut [],
        }
    }

    /// Returns whether the value is `true`.
    pub fn bool(&self) -> bool {
        self.value == Value::Bool(true)
    }

    /// Returns the number; words such as `auto` give `None`.
    pub fn int_or_word(&self) -> Option<u64> {
        match self.value {
            Value::Int(number) | Value::Counted { count: number, .. } => Some(number),
            _ => None,
        }
    }

    /// Returns the number.
    pub fn int(&self) -> u64 {
        self.int_or_word().expect("the schema makes this a number")
    }

    /// Returns the number.
    pub fn float(&self) -> f64 {
        self.float_if_set().expect("the schema gives this a number")
    }

    /// Returns the number, if there is one.
    pub fn float_if_set(&self) -> Option<f64> {
        match self.value {
            Value::Float(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> u64 {
        match self.value {
            Value::Size(bytes) => bytes,
            _ => unreachable!("the schema gives this a size"),
        }
    }

    /// Returns the number of bytes; words give `None`.
    pub fn size_if_set(&self) -> Option<u64> {
        match self.value {
            Value::Size(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the text; words and unset give `None`.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the word, if it is one.
    pub fn word(&self) -> Option<&'static str> {
        match self.value {
            Value::Word(word) => Some(word),
            _ => None,
        }
    }

    /// Returns the secret, if there is one.
    pub fn secret(&self) -> Option<&Secret> {
        match &self.value {
            Value::Secret(secret) => Some(secret),
            _ => None,
        }
    }

    /// Returns the address, if there is one.
    pub fn listen_if_set(&self) -> Option<&ListenSetting> {
        match &self.value {
            Value::Listen(listen) => Some(listen),
            _ => None,
        }
    }

    /// Returns the address.
    pub fn listen(&self) -> &ListenSetting {
        match &self.value {
            Value::Listen(listen) => listen,
            _ => unreachable!("the schema gives this an address"),
        }
    }

    /// Returns the displayable form: secrets hidden, durations and sizes as people write them.
    pub fn shown(&self) -> Json {
        match &self.value {
            Value::Unset => Json::Null,
            Value::Bool(value) => Json::from(*value),
            Value::Int(number) | Value::Counted { count: number, .. } => Json::from(*number),
            Value::Float(number) => Json::from(*number),
            Value::Duration(duration) => Json::from(notation::show_duration(*duration)),
            Value::Size(bytes) => {
                let text = notation::show_size(*bytes);
                text.parse::<u64>()
                    .map_or_else(|_| Json::from(text), Json::from)
            }
            Value::Text(text) => Json::from(text.as_str()),
            Value::Word(word) => Json::from(*word),
            Value::WorkerUrl { url, .. } => Json::from(url.as_str()),
            Value::Listen(listen) => Json::from(listen.to_string()),
            Value::RedisUrl(url) => Json::from(url.to_string()),
            Value::Secret(secret) => Json::from(secret.to_string()),
            Value::Free(value) => value.clone(),
            Value::List(items) => items.iter().map(Self::shown).collect(),
            Value::Map(entries) => Json::Object(
                entries
                    .iter()
                    .map(|(key, value)| (key.clone(), value.shown()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }
}
