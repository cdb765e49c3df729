//! Error of one value, before its place is known.

use crate::{
    kind::ValueKind,
    tree::{LocatedValue, ValueNode, shown_text},
};

/// Error of one value.
#[derive(Debug)]
pub struct ValueError {
    /// Description of the error.
    pub message: String,
    /// Description of a correct value.
    pub expected: Option<String>,
    /// Closest known word.
    pub nearest: Option<String>,
    /// Whether the value must not be shown.
    pub secret: bool,
}

impl ValueError {
    /// Returns an error with only a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            expected: None,
            nearest: None,
            secret: false,
        }
    }

    /// Sets the description of a correct value.
    #[must_use]
    pub fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// Returns the error for a value that is not of the kind, or out of its range.
    pub fn unusable(given: &LocatedValue, kind: &ValueKind) -> Self {
        let what = match &given.node {
            ValueNode::List(_) => "a list".into(),
            ValueNode::Map(_) => "a mapping".into(),
            ValueNode::Null => "an empty value".into(),
            ValueNode::Text(text) => format!("the text `{}`", shown_text(text)),
            ValueNode::Loose(text) => format!("`{}`", shown_text(text)),
            _ => format!("`{}`", given.shown()),
        };
        let secret = kind.may_hold_secret();
        let what = if secret { "this value".into() } else { what };
        Self {
            secret,
            ..Self::new(format!("cannot use {what}")).expected(kind.expected())
        }
    }

    /// Returns the error for `what`, which is known but unsupported in this version.
    pub fn later(what: &str) -> Self {
        Self::new(format!("{what} is not built yet in this version"))
    }
}
