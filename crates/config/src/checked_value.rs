//! The configuration after the walk against the schema: every key present, every value of its kind.
//!
//! Wrong values are replaced by their defaults, marked [`CheckedValue::failed`], so that the checks
//! between keys can still run and report problems.

use std::{num::NonZeroU32, time::Duration};

use serde_json::{Map, Value as Json};

use crate::{ListenSetting, RedisUrl, Secret, scalar, tree::ValueOrigin};

/// A value of its kind, and its origin.
#[derive(Clone, Debug)]
pub(crate) struct CheckedValue {
    pub(crate) value: Value,
    /// `None` = the default.
    pub(crate) origin: Option<ValueOrigin>,
    /// Whether a problem was reported for it.
    pub(crate) failed: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Unset,
    Bool(bool),
    Int(u64),
    Float(f64),
    Duration(Duration),
    Size(u64),
    Text(String),
    /// One of the schema's own words.
    Word(&'static str),
    WorkerUrl {
        url: String,
        host_port: String,
    },
    Listen(ListenSetting),
    Secret(Secret),
    RedisUrl(RedisUrl),
    Free(Json),
    List(Vec<CheckedValue>),
    Map(Vec<(String, CheckedValue)>),
}

impl PartialEq for CheckedValue {
    /// Compares values only, not their origins.
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl CheckedValue {
    pub(crate) fn default_of(value: Value) -> Self {
        Self {
            value,
            origin: None,
            failed: false,
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.origin.is_some()
    }

    /// Returns the value under a key of a section. The walk filled in every key of the table.
    pub(crate) fn key(&self, name: &str) -> &Self {
        self.entries()
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
            .expect("the schema table has this key")
    }

    pub(crate) fn key_mut(&mut self, name: &str) -> &mut Self {
        let Value::Map(entries) = &mut self.value else {
            unreachable!("the schema makes this a section")
        };
        entries
            .iter_mut()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
            .expect("the schema table has this key")
    }

    pub(crate) fn entries(&self) -> &[(String, Self)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    pub(crate) fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    pub(crate) fn items_mut(&mut self) -> &mut [Self] {
        match &mut self.value {
            Value::List(items) => items,
            _ => &mut [],
        }
    }

    pub(crate) fn bool(&self) -> bool {
        self.value == Value::Bool(true)
    }

    /// Returns the number; words such as `auto` give `None`.
    pub(crate) fn int_or_word(&self) -> Option<u64> {
        match self.value {
            Value::Int(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn int(&self) -> u64 {
        self.int_or_word().expect("the schema makes this a number")
    }

    pub(crate) fn count(&self) -> NonZeroU32 {
        self.count_or_word()
            .expect("the schema makes this a number from 1 on")
    }

    pub(crate) fn count_or_word(&self) -> Option<NonZeroU32> {
        self.int_or_word()
            .and_then(|number| u32::try_from(number).ok())
            .and_then(NonZeroU32::new)
    }

    pub(crate) fn float(&self) -> f64 {
        self.float_if_set().expect("the schema gives this a number")
    }

    pub(crate) fn float_if_set(&self) -> Option<f64> {
        match self.value {
            Value::Float(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn duration(&self) -> Duration {
        self.duration_if_set()
            .expect("the schema gives this a duration")
    }

    pub(crate) fn duration_if_set(&self) -> Option<Duration> {
        match self.value {
            Value::Duration(duration) => Some(duration),
            _ => None,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match self.value {
            Value::Size(bytes) => bytes,
            _ => unreachable!("the schema gives this a size"),
        }
    }

    pub(crate) fn size_if_set(&self) -> Option<u64> {
        match self.value {
            Value::Size(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn size_in_memory(&self) -> usize {
        usize::try_from(self.size()).unwrap_or(usize::MAX)
    }

    /// Returns the text; words and unset give `None`.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn word(&self) -> Option<&'static str> {
        match self.value {
            Value::Word(word) => Some(word),
            _ => None,
        }
    }

    pub(crate) fn secret(&self) -> Option<&Secret> {
        match &self.value {
            Value::Secret(secret) => Some(secret),
            _ => None,
        }
    }

    pub(crate) fn redis_url(&self) -> Option<&RedisUrl> {
        match &self.value {
            Value::RedisUrl(url) => Some(url),
            _ => None,
        }
    }

    pub(crate) fn listen_if_set(&self) -> Option<&ListenSetting> {
        match &self.value {
            Value::Listen(listen) => Some(listen),
            _ => None,
        }
    }

    pub(crate) fn listen(&self) -> &ListenSetting {
        match &self.value {
            Value::Listen(listen) => listen,
            _ => unreachable!("the schema gives this an address"),
        }
    }

    /// Returns the displayable form: secrets hidden, durations and sizes as people write them.
    pub(crate) fn shown(&self) -> Json {
        match &self.value {
            Value::Unset => Json::Null,
            Value::Bool(value) => Json::from(*value),
            Value::Int(number) => Json::from(*number),
            Value::Float(number) => Json::from(*number),
            Value::Duration(duration) => Json::from(scalar::show_duration(*duration)),
            Value::Size(bytes) => {
                let text = scalar::show_size(*bytes);
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
