//! The added tokens of a tokenizer.

use serde_json::Value;

/// An added token, which is found in a text before any other step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) content: String,
    /// Whether it matches no part of a word.
    pub(super) single_word: bool,
    /// Whether it matches its own bytes in any context: it takes no adjacent spaces and is not
    /// searched in a normalized text.
    pub(super) literal: bool,
}

impl AddedToken {
    /// Reads the added tokens of a tokenizer file.
    pub(super) fn read(described: &Value) -> Vec<Self> {
        let added = described
            .get("added_tokens")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let token = |token: &Value| {
            let flag = |name| token.get(name).and_then(Value::as_bool).unwrap_or(false);
            Some(Self {
                content: token.get("content")?.as_str()?.to_owned(),
                single_word: flag("single_word"),
                literal: !(flag("lstrip") || flag("rstrip") || flag("normalized")),
            })
        };
        added.filter_map(token).collect()
    }
}
