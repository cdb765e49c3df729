//! Single values, with their variables.

use std::borrow::Cow;

use settings::{
    CheckedValue, LocatedValue, MapEntry, Value, ValueError, ValueKind, ValueNode, scalar,
};

use super::Checker;
use crate::expand::{ExpandError, expand};

impl Checker<'_> {
    pub(super) fn leaf(
        &mut self,
        kind: &'static ValueKind,
        given: &LocatedValue,
        path: &str,
    ) -> CheckedValue {
        let origin = Some(given.origin.clone());
        let read = self.expanded(given).and_then(|plain| match kind {
            ValueKind::Free => self.free(&plain).map(Value::Free),
            _ => scalar(kind, &plain, given, self.check_url),
        });
        match read {
            Ok(value) => CheckedValue {
                value,
                origin,
                failed: false,
            },
            Err(fault) => {
                self.file(path, given, fault);
                CheckedValue {
                    value: Value::Unset,
                    origin,
                    failed: true,
                }
            }
        }
    }

    /// Replaces `${NAME}` in the value. The key determines the type of the result, as a number in a
    /// variable is a text too.
    fn expanded<'v>(&self, given: &'v LocatedValue) -> Result<Cow<'v, LocatedValue>, ValueError> {
        let ValueNode::Text(text) = &given.node else {
            return Ok(Cow::Borrowed(given));
        };
        let node = match expand(text, self.env) {
            Ok(None) => return Ok(Cow::Borrowed(given)),
            Ok(Some(text)) => ValueNode::Loose(text),
            Err(ExpandError::Unset(name)) => {
                let fault = ValueError::new(format!("the variable `{name}` is not set"));
                return Err(fault.expected(format!("`{name}` in the environment")));
            }
            Err(ExpandError::Malformed) => {
                let fault = ValueError::new("`${` does not name a variable");
                return Err(fault.expected("`${NAME}`, or `$${` for the characters themselves"));
            }
        };
        Ok(Cow::Owned(LocatedValue {
            node,
            origin: given.origin.clone(),
        }))
    }

    /// Returns any value as JSON.
    fn free(&self, given: &LocatedValue) -> Result<serde_json::Value, ValueError> {
        Ok(match &given.node {
            ValueNode::List(items) => {
                let items = items
                    .iter()
                    .map(|item| self.expanded(item).and_then(|item| self.free(&item)));
                items.collect::<Result<_, _>>()?
            }
            ValueNode::Map(entries) => {
                let entries = entries.iter().map(|MapEntry { key, value, .. }| {
                    self.expanded(value)
                        .and_then(|value| self.free(&value))
                        .map(|value| (key.clone(), value))
                });
                serde_json::Value::Object(entries.collect::<Result<_, _>>()?)
            }
            ValueNode::Text(text) | ValueNode::Loose(text) => text.as_str().into(),
            _ => given.shown(),
        })
    }
}
