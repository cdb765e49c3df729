//! A value in its text.
//!
//! **Invariant**: a [`RawJson`] is exactly one value that passed the walk, without space around it.

use std::{borrow::Cow, ops::Range};

use super::{
    text::decode,
    walk::{elements, members},
};

/// One JSON value as it appears in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawJson<'a>(pub(super) &'a str);

impl<'a> RawJson<'a> {
    /// Returns the value at this place of a text, where a walk has found it.
    pub(crate) fn found_at(text: &'a str, place: Range<usize>) -> Option<Self> {
        text.get(place).map(Self)
    }

    /// Returns its place in the text in which a walk has found it.
    pub(crate) fn place_in(self, text: &str) -> Range<usize> {
        let from = self.0.as_ptr() as usize - text.as_ptr() as usize;
        from..from + self.0.len()
    }

    /// Returns the text of the value, without space around it.
    pub fn as_str(self) -> &'a str {
        self.0
    }

    /// Returns whether the value is `null`.
    pub fn is_null(self) -> bool {
        self.0 == "null"
    }

    /// Returns the text of a string; halves of surrogate pairs read as U+FFFD.
    pub fn string(self) -> Option<Cow<'a, str>> {
        self.0.starts_with('"').then(|| decode(self.0))
    }

    /// Returns the members of an object, in the order of the text. A key may occur twice.
    pub fn members(self) -> Option<impl Iterator<Item = (Cow<'a, str>, RawJson<'a>)>> {
        self.0.starts_with('{').then(|| {
            members(self.0)
                .filter_map(Result::ok)
                .map(|(key, value)| (decode(key), value))
        })
    }

    /// Returns the last member with that key, as engines read it, if the value is an object; `null`
    /// counts as absent.
    pub fn member(self, key: &str) -> Option<RawJson<'a>> {
        self.members()?
            .filter(|(name, _)| name == key)
            .last()
            .map(|(_, value)| value)
            .filter(|value| !value.is_null())
    }

    /// Returns the elements of an array.
    pub fn elements(self) -> Option<impl Iterator<Item = RawJson<'a>> + use<'a>> {
        self.0
            .starts_with('[')
            .then(|| elements(self.0).filter_map(Result::ok))
    }

    /// Reads the value as a lenient engine reads a flag: `true`, `1`, and the words for it. `None`
    /// if it is neither.
    pub fn flag(self) -> Option<bool> {
        match self.0 {
            "true" | "1" | "1.0" => return Some(true),
            "false" | "0" | "0.0" => return Some(false),
            _ => {}
        }
        match self.string()?.to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
            "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
            _ => None,
        }
    }

    /// Reads the value as a lenient engine reads a whole number: `7`, `7.0`, `"7"`.
    pub fn integer(self) -> Option<i64> {
        let text = self.string().unwrap_or(Cow::Borrowed(self.0));
        let text = text.trim();
        if let Ok(number) = text.parse() {
            return Some(number);
        }
        let (whole, zeros) = text.split_once('.')?;
        zeros
            .bytes()
            .all(|digit| digit == b'0')
            .then(|| whole.parse().ok())
            .flatten()
    }
}
