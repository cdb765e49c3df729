//! Values of single fields in either encoding: the accepted kinds, and the error for any other
//! value.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Unexpected, Visitor};

/// Longest text of a field, in bytes.
const LONGEST_TEXT: usize = 1024;

/// Kind of value that a field accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldKind {
    /// A text.
    Text,
    /// A whole number.
    Number,
    /// Token ids: numbers; in msgpack also their bytes, four per id, little-endian.
    Tokens,
    /// Hashes: numbers, or decimal texts for clients whose numbers are floats.
    Hashes,
}

/// Value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FieldValue {
    Null,
    Text(String),
    Number(u64),
    Tokens(Vec<u32>),
    Hashes(Vec<u64>),
}

impl<'de> DeserializeSeed<'de> for FieldKind {
    type Value = FieldValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<FieldValue, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldKind {
    type Value = FieldValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "a text",
            Self::Number => "a whole number, 0 or more",
            Self::Tokens => "a list of token ids",
            Self::Hashes => "a list of hashes",
        })
    }

    fn visit_unit<E: Error>(self) -> Result<FieldValue, E> {
        Ok(FieldValue::Null)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<FieldValue, E> {
        match self {
            Self::Text if text.len() > LONGEST_TEXT => Err(E::custom(format!(
                "has {} bytes, at most {LONGEST_TEXT} are taken",
                text.len()
            ))),
            Self::Text => Ok(FieldValue::Text(text.to_owned())),
            _ => Err(E::invalid_type(Unexpected::Str(text), &self)),
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<FieldValue, E> {
        match self {
            Self::Number => Ok(FieldValue::Number(number)),
            _ => Err(E::invalid_type(Unexpected::Unsigned(number), &self)),
        }
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<FieldValue, E> {
        match (self, bytes.as_chunks::<4>()) {
            (Self::Tokens, (tokens, [])) => Ok(FieldValue::Tokens(
                tokens
                    .iter()
                    .map(|token| u32::from_le_bytes(*token))
                    .collect(),
            )),
            _ => Err(E::invalid_type(Unexpected::Bytes(bytes), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FieldValue, A::Error> {
        // The lists grow with the elements read: an announced length is not trusted.
        match self {
            Self::Tokens => {
                let mut tokens = Vec::new();
                while let Some(token) = list.next_element_seed(ListElement::Token)? {
                    // The seed has checked the range.
                    tokens.push(u32::try_from(token).unwrap_or_default());
                }
                Ok(FieldValue::Tokens(tokens))
            }
            Self::Hashes => {
                let mut hashes = Vec::new();
                while let Some(hash) = list.next_element_seed(ListElement::Hash)? {
                    hashes.push(hash);
                }
                Ok(FieldValue::Hashes(hashes))
            }
            _ => Err(Error::invalid_type(Unexpected::Seq, &self)),
        }
    }
}

/// Element of a list.
#[derive(Clone, Copy)]
enum ListElement {
    Token,
    Hash,
}

impl<'de> DeserializeSeed<'de> for ListElement {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for ListElement {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "a token id from 0 to 4294967295",
            Self::Hash => "a hash from 0 to 18446744073709551615, as a number or as decimal digits",
        })
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        match self {
            Self::Token if number > u64::from(u32::MAX) => {
                Err(E::invalid_value(Unexpected::Unsigned(number), &self))
            }
            _ => Ok(number),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        let digits = matches!(self, Self::Hash) && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}
