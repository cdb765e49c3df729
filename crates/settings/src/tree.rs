//! The configuration before it is checked: values of any shape, each with its origin.
//!
//! File, environment and flags all end up in one such tree, so that one walk checks them alike.

use serde_json::Value as Json;
use zeroize::Zeroizing;

/// Origin of a value or key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueOrigin {
    /// The file.
    File {
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
    },
    /// An environment variable or a flag, by its name.
    Named(String),
}

/// A value and its origin.
#[derive(Clone, Debug)]
pub struct LocatedValue {
    /// The value.
    pub node: ValueNode,
    /// Its origin.
    pub origin: ValueOrigin,
}

/// A value of any shape.
#[derive(Clone, Debug)]
pub enum ValueNode {
    /// An empty value.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Any other number.
    Float(f64),
    /// A string of the file; `${NAME}` in it is not expanded yet. It may be a secret.
    Text(Zeroizing<String>),
    /// A text from a variable or flag: its type depends on the key.
    Loose(Zeroizing<String>),
    /// A list.
    List(Vec<LocatedValue>),
    /// A mapping, in the order of the file, no duplicate keys.
    Map(Vec<MapEntry>),
}

/// One key of a map.
#[derive(Clone, Debug)]
pub struct MapEntry {
    /// The key.
    pub key: String,
    /// Origin of the key.
    pub origin: ValueOrigin,
    /// The value.
    pub value: LocatedValue,
}

/// Longest text shown in a problem, characters; the rest is cut.
const SHOWN_CHARS: usize = 80;

impl LocatedValue {
    /// Returns the value under this key, if this is a map that has it.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.node {
            ValueNode::Map(entries) => entries
                .iter_mut()
                .find(|entry| entry.key == key)
                .map(|entry| &mut entry.value),
            _ => None,
        }
    }

    /// Returns the value under this key, inserting an empty map if there is none; `None` if this is
    /// something other than a map.
    pub fn get_or_insert(&mut self, key: &str, origin: &ValueOrigin) -> Option<&mut Self> {
        if matches!(self.node, ValueNode::Null) {
            *self = Self {
                node: ValueNode::Map(Vec::new()),
                origin: origin.clone(),
            };
        }
        let ValueNode::Map(entries) = &mut self.node else {
            return None;
        };
        let at = entries
            .iter()
            .position(|entry| entry.key == key)
            .unwrap_or_else(|| {
                let value = Self {
                    node: ValueNode::Null,
                    origin: origin.clone(),
                };
                entries.push(MapEntry {
                    key: key.to_owned(),
                    origin: origin.clone(),
                    value,
                });
                entries.len() - 1
            });
        Some(&mut entries[at].value)
    }

    /// Returns the value as JSON, as written.
    pub fn to_json(&self) -> Json {
        match &self.node {
            ValueNode::List(items) => items.iter().map(Self::to_json).collect(),
            ValueNode::Map(entries) => Json::Object(
                entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.value.to_json()))
                    .collect(),
            ),
            ValueNode::Text(text) | ValueNode::Loose(text) => Json::from(text.as_str()),
            _ => self.shown(),
        }
    }

    /// Returns the displayable form for problems. Texts are shown as written, before `${NAME}` was
    /// expanded: a variable's value never appears.
    pub fn shown(&self) -> Json {
        match &self.node {
            ValueNode::Null => Json::Null,
            ValueNode::Bool(value) => Json::Bool(*value),
            ValueNode::Int(value) => u64::try_from(*value)
                .map(Json::from)
                .or_else(|_| i64::try_from(*value).map(Json::from))
                .unwrap_or_else(|_| Json::from(value.to_string())),
            ValueNode::Float(value) => Json::from(*value),
            ValueNode::Text(text) | ValueNode::Loose(text) => Json::from(shown_text(text)),
            ValueNode::List(_) => Json::from("[...]"),
            ValueNode::Map(_) => Json::from("{...}"),
        }
    }
}

/// Returns a text, cut when long, with the user and password of a URL hidden.
pub fn shown_text(text: &str) -> String {
    let hidden = match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            format!("{}***{}", &text[..scheme + 3], &text[at..])
        }
        _ => text.to_owned(),
    };
    match hidden.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &hidden[..end]),
        None => hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_displayed_without_user_and_password() {
        assert_eq!(shown_text("redis://u:p@ss@h:1/x"), "redis://***@h:1/x");
        assert_eq!(shown_text("a@b://c"), "a@b://c");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(
            shown_text(&"ü".repeat(100)),
            format!("{}...", "ü".repeat(80))
        );
    }
}
