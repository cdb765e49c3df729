//! One undecoded value, in either encoding.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{
    EventError, json,
    wire::{MsgpackHead, MsgpackReader},
};

/// A scalar, in the forms that events use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Nil,
    Number(i128),
    /// A text that is a whole number in decimal digits.
    Digits(u64),
    /// Any other text, or a value that is not a scalar.
    Other,
}

/// A value that is decoded on demand.
pub(super) trait LazyValue: Copy {
    fn scalar(self) -> Scalar;

    /// Returns the text, if the value is one.
    fn text(self) -> Option<Arc<str>>;

    /// Calls a function with each value of an array; `None` if it is not an array.
    fn each(
        self,
        take: impl FnMut(Self) -> Result<(), EventError>,
    ) -> Option<Result<(), EventError>>;

    /// Decodes a list of plain numbers at once: the fast path for well-formed lists.
    fn numbers<T: TryFrom<u64> + DeserializeOwned>(self) -> Option<Vec<T>>;

    /// Returns a short form for messages.
    fn show(self) -> String;
}

/// Longest quoted part of a value.
const QUOTED: usize = 60;

impl LazyValue for &RawValue {
    fn scalar(self) -> Scalar {
        match self.get() {
            "null" => Scalar::Nil,
            text if text.starts_with('"') => json::text(self)
                .and_then(|text| json::digits(&text))
                .map_or(Scalar::Other, Scalar::Digits),
            text => text.parse().map_or(Scalar::Other, Scalar::Number),
        }
    }

    fn text(self) -> Option<Arc<str>> {
        json::text(self).map(Arc::from)
    }

    fn each(
        self,
        take: impl FnMut(Self) -> Result<(), EventError>,
    ) -> Option<Result<(), EventError>> {
        json::each(self.get().as_bytes(), take).ok()
    }

    fn numbers<T: TryFrom<u64> + DeserializeOwned>(self) -> Option<Vec<T>> {
        serde_json::from_str(self.get()).ok()
    }

    fn show(self) -> String {
        self.get().chars().take(QUOTED).collect()
    }
}

/// A whole msgpack value, found by a [`MsgpackReader`].
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedValue<'a>(pub(super) &'a [u8]);

impl<'a> PackedValue<'a> {
    fn head(self) -> Option<MsgpackHead<'a>> {
        MsgpackReader::new(self.0).head().ok()
    }
}

impl LazyValue for PackedValue<'_> {
    fn scalar(self) -> Scalar {
        match self.head() {
            Some(MsgpackHead::Nil) => Scalar::Nil,
            Some(MsgpackHead::Unsigned(value)) => Scalar::Number(value.into()),
            Some(MsgpackHead::Negative(value)) => Scalar::Number(value.into()),
            Some(MsgpackHead::Text(bytes)) => std::str::from_utf8(bytes)
                .ok()
                .and_then(json::digits)
                .map_or(Scalar::Other, Scalar::Digits),
            _ => Scalar::Other,
        }
    }

    fn text(self) -> Option<Arc<str>> {
        match self.head()? {
            MsgpackHead::Text(bytes) => std::str::from_utf8(bytes).ok().map(Arc::from),
            _ => None,
        }
    }

    fn each(
        self,
        mut take: impl FnMut(Self) -> Result<(), EventError>,
    ) -> Option<Result<(), EventError>> {
        let mut reader = MsgpackReader::new(self.0);
        let Ok(MsgpackHead::Array(len)) = reader.head() else {
            return None;
        };
        for _ in 0..len {
            let Ok(value) = reader.value() else {
                return None;
            };
            if let Err(error) = take(Self(value)) {
                return Some(Err(error));
            }
        }
        Some(Ok(()))
    }

    fn numbers<T: TryFrom<u64> + DeserializeOwned>(self) -> Option<Vec<T>> {
        let mut reader = MsgpackReader::new(self.0);
        let Ok(MsgpackHead::Array(len)) = reader.head() else {
            return None;
        };
        // `head` has checked that this many values can follow.
        let mut numbers = Vec::with_capacity(len);
        for _ in 0..len {
            let Ok(MsgpackHead::Unsigned(number)) = reader.head() else {
                return None;
            };
            numbers.push(T::try_from(number).ok()?);
        }
        Some(numbers)
    }

    fn show(self) -> String {
        match self.head() {
            Some(MsgpackHead::Nil) => "nil".into(),
            Some(MsgpackHead::Unsigned(value)) => value.to_string(),
            Some(MsgpackHead::Negative(value)) => value.to_string(),
            Some(MsgpackHead::Float(value)) => value.to_string(),
            Some(MsgpackHead::Text(bytes)) => {
                let text: String =
                    String::from_utf8_lossy(&bytes[..bytes.len().min(QUOTED)]).into();
                format!("{text:?}")
            }
            Some(MsgpackHead::Bytes(bytes)) => format!("{} bytes", bytes.len()),
            Some(MsgpackHead::Array(len)) => format!("an array of {len}"),
            Some(MsgpackHead::Map(_)) => "a map".into(),
            Some(MsgpackHead::Other) | None => "a boolean or an extension".into(),
        }
    }
}
