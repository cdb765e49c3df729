//! A strict, borrowed reader of JSON text.
//!
//! The reader walks a text once, checks the whole grammar, and returns members as slices of the
//! text. It builds no tree, copies nothing and does not recurse. It is no general parser.
//!
//! **Invariant**: a [`RawJson`] is exactly one value that passed the walk, without space around it.

pub(crate) mod compact;
mod scan;
mod special;
mod text;
mod turns;
mod walk;
mod write;

pub(crate) use scan::{object, utf8, whole};
pub(crate) use text::{decode, write_string};
pub(crate) use turns::walk_turns;
pub(crate) use walk::{body_members, elements, members};
pub(crate) use write::{ArrayWriter, ObjectWriter};

use std::borrow::Cow;

/// Maximum nesting depth of containers.
pub const MAX_DEPTH: u32 = 128;

/// Maximum number of values and keys in a text, all levels together: enough for a prompt of a
/// million token ids.
pub const MAX_NODES: u32 = 1 << 20;

/// The reason why a text is not one JSON value, and the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct JsonError {
    /// Offset in bytes from the start of the text.
    pub at: usize,
    /// The unexpected or missing token.
    pub what: &'static str,
}

/// One JSON value as it appears in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawJson<'a>(&'a str);

impl<'a> RawJson<'a> {
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
