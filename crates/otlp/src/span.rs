//! Spans, as the request path builds them.

use std::borrow::Cow;

use kv_blocks::Moment;

use crate::{SpanContext, SpanId};

/// Most bytes of a text in an attribute: some are the client's, such as the name of a model.
const MOST_TEXT: usize = 256;

/// A part of a request's work, once it has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its place in its trace.
    pub context: SpanContext,
    /// The span that it is a part of.
    pub parent: Option<SpanId>,
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its kind.
    pub kind: SpanKind,
    /// Its start.
    pub start: Moment,
    /// Its end.
    pub end: Moment,
    /// Its attributes.
    pub attributes: Attributes,
    /// What happened within it.
    pub events: Vec<SpanEvent>,
    /// Whether the work failed.
    pub failed: bool,
}

/// The side of a call that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A request of a client.
    Server,
    /// A request to another server.
    Client,
    /// Work inside the process.
    Internal,
}

/// A point in time within a span.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanEvent {
    /// Its name.
    pub name: &'static str,
    /// When it happened.
    pub at: Moment,
    /// Its attributes.
    pub attributes: Attributes,
}

/// Names with values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(Vec<(&'static str, AttributeValue)>);

impl Attributes {
    /// Adds an attribute.
    pub fn add(&mut self, name: &'static str, value: impl Into<AttributeValue>) {
        self.0.push((name, value.into()));
    }

    /// Adds an attribute, if it has a value.
    pub fn add_some(&mut self, name: &'static str, value: Option<impl Into<AttributeValue>>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    /// Returns the value of an attribute.
    pub fn get(&self, name: &str) -> Option<&AttributeValue> {
        let mut all = self.0.iter();
        all.find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    /// Returns every attribute, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &(&'static str, AttributeValue)> {
        self.0.iter()
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// A text of at most 256 bytes.
    Text(String),
    /// A list of one text.
    TextList(String),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
}

impl AttributeValue {
    /// Returns a list of one text.
    pub fn text_list(text: &str) -> Self {
        Self::TextList(shortened(text))
    }
}

/// Returns the beginning of a text, at most [`MOST_TEXT`] bytes.
fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(MOST_TEXT)].to_owned()
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(shortened(text))
    }
}

impl From<u16> for AttributeValue {
    fn from(number: u16) -> Self {
        Self::Int(number.into())
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<f64> for AttributeValue {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let long = "\u{20ac}".repeat(200);
        assert_eq!(
            AttributeValue::from(&*long),
            AttributeValue::Text("\u{20ac}".repeat(85))
        );
        assert_eq!(
            AttributeValue::text_list("stop"),
            AttributeValue::TextList("stop".to_owned())
        );
    }

    #[test]
    fn an_attribute_without_a_value_is_left_out() {
        let mut attributes = Attributes::default();
        attributes.add_some("a", None::<u32>);
        attributes.add_some("b", Some(1u32));
        assert_eq!(attributes.get("a"), None);
        assert_eq!(attributes.get("b"), Some(&AttributeValue::Int(1)));
        assert_eq!(attributes.iter().count(), 1);
    }
}
