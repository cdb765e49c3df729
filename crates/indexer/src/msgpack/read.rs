//! Reads msgpack through the same visitors as JSON.
//!
//! **Invariant**: an announced length is accepted only if the remaining bytes can hold it, and
//! nesting has a limit.

use std::fmt;

use rmp::Marker;
use serde::{
    de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor},
    forward_to_deserialize_any,
};

/// Deepest nesting of a value.
const MAX_DEPTH: u8 = 64;

/// Reads one value that spans all of `bytes`.
pub(crate) fn read<'de, S: DeserializeSeed<'de>>(
    bytes: &'de [u8],
    seed: S,
) -> Result<S::Value, Error> {
    let mut reader = MsgpackReader {
        rest: bytes,
        depth: 0,
    };
    let value = seed.deserialize(&mut reader)?;
    if reader.rest.is_empty() {
        Ok(value)
    } else {
        Err(Error("more bytes follow the value".to_owned()))
    }
}

/// Reason why the bytes cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Error(String);

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// A cursor over msgpack bytes.
struct MsgpackReader<'de> {
    rest: &'de [u8],
    depth: u8,
}

impl<'de> MsgpackReader<'de> {
    fn take(&mut self, length: usize) -> Result<&'de [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(ends_early)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], Error> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(ends_early)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads a length of `LENGTH` bytes.
    fn length<const LENGTH: usize>(&mut self) -> Result<usize, Error> {
        Ok(self
            .number::<LENGTH>()?
            .iter()
            .fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    fn text<V: Visitor<'de>>(&mut self, length: usize, visitor: V) -> Result<V::Value, Error> {
        match std::str::from_utf8(self.take(length)?) {
            Ok(text) => visitor.visit_borrowed_str(text),
            Err(_) => Err(Error("a text is not UTF-8".to_owned())),
        }
    }

    fn bytes<V: Visitor<'de>>(&mut self, length: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_bytes(self.take(length)?)
    }

    /// Visits a list or a map of `count` values, each of at least one byte.
    fn children<V: Visitor<'de>>(
        &mut self,
        values: usize,
        visit: impl FnOnce(Children<'_, 'de>) -> Result<V::Value, Error>,
    ) -> Result<V::Value, Error> {
        if values > self.rest.len() {
            return Err(ends_early());
        }
        if self.depth == MAX_DEPTH {
            return Err(Error(format!("values nest deeper than {MAX_DEPTH}")));
        }
        self.depth += 1;
        let mut left = values;
        let value = visit(Children {
            reader: self,
            left: &mut left,
        })?;
        self.depth -= 1;
        if left == 0 {
            Ok(value)
        } else {
            Err(Error("a list was left unread".to_owned()))
        }
    }

    fn list<V: Visitor<'de>>(&mut self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.children::<V>(length, |children| visitor.visit_seq(children))
    }

    fn map<V: Visitor<'de>>(&mut self, pairs: usize, visitor: V) -> Result<V::Value, Error> {
        self.children::<V>(pairs.saturating_mul(2), |children| {
            visitor.visit_map(children)
        })
    }
}

fn ends_early() -> Error {
    Error("the bytes end too early".to_owned())
}

impl<'de> Deserializer<'de> for &mut MsgpackReader<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match Marker::from_u8(self.number::<1>()?[0]) {
            Marker::FixPos(number) => visitor.visit_u64(number.into()),
            Marker::FixNeg(number) => visitor.visit_i64(number.into()),
            Marker::Null => visitor.visit_unit(),
            Marker::True => visitor.visit_bool(true),
            Marker::False => visitor.visit_bool(false),
            Marker::U8 => visitor.visit_u64(u8::from_be_bytes(self.number()?).into()),
            Marker::U16 => visitor.visit_u64(u16::from_be_bytes(self.number()?).into()),
            Marker::U32 => visitor.visit_u64(u32::from_be_bytes(self.number()?).into()),
            Marker::U64 => visitor.visit_u64(u64::from_be_bytes(self.number()?)),
            Marker::I8 => signed(i8::from_be_bytes(self.number()?).into(), visitor),
            Marker::I16 => signed(i16::from_be_bytes(self.number()?).into(), visitor),
            Marker::I32 => signed(i32::from_be_bytes(self.number()?).into(), visitor),
            Marker::I64 => signed(i64::from_be_bytes(self.number()?), visitor),
            Marker::F32 => visitor.visit_f64(f32::from_be_bytes(self.number()?).into()),
            Marker::F64 => visitor.visit_f64(f64::from_be_bytes(self.number()?)),
            Marker::FixStr(length) => self.text(length.into(), visitor),
            Marker::Str8 => self
                .length::<1>()
                .and_then(|length| self.text(length, visitor)),
            Marker::Str16 => self
                .length::<2>()
                .and_then(|length| self.text(length, visitor)),
            Marker::Str32 => self
                .length::<4>()
                .and_then(|length| self.text(length, visitor)),
            Marker::Bin8 => self
                .length::<1>()
                .and_then(|length| self.bytes(length, visitor)),
            Marker::Bin16 => self
                .length::<2>()
                .and_then(|length| self.bytes(length, visitor)),
            Marker::Bin32 => self
                .length::<4>()
                .and_then(|length| self.bytes(length, visitor)),
            Marker::FixArray(length) => self.list(length.into(), visitor),
            Marker::Array16 => self
                .length::<2>()
                .and_then(|length| self.list(length, visitor)),
            Marker::Array32 => self
                .length::<4>()
                .and_then(|length| self.list(length, visitor)),
            Marker::FixMap(pairs) => self.map(pairs.into(), visitor),
            Marker::Map16 => self
                .length::<2>()
                .and_then(|pairs| self.map(pairs, visitor)),
            Marker::Map32 => self
                .length::<4>()
                .and_then(|pairs| self.map(pairs, visitor)),
            _ => Err(Error(
                "an extension type or no msgpack at all: send nil, numbers, texts, lists and maps"
                    .to_owned(),
            )),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Visits a signed number: encoders use the signed form for small positive numbers too.
fn signed<'de, V: Visitor<'de>>(number: i64, visitor: V) -> Result<V::Value, Error> {
    match u64::try_from(number) {
        Ok(number) => visitor.visit_u64(number),
        Err(_) => visitor.visit_i64(number),
    }
}

/// Remaining values of a list or map.
struct Children<'a, 'de> {
    reader: &'a mut MsgpackReader<'de>,
    left: &'a mut usize,
}

impl<'de> Children<'_, 'de> {
    fn next<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if *self.left == 0 {
            return Ok(None);
        }
        *self.left -= 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de> SeqAccess<'de> for Children<'_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.next(seed)
    }
}

impl<'de> MapAccess<'de> for Children<'_, 'de> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.next(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        // A map has an even number of values, so each key has a value.
        self.next(seed)?.ok_or_else(ends_early)
    }
}

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use serde_json::{Value, json};

    use super::*;
    use crate::msgpack::write;

    fn value(bytes: &[u8]) -> Result<Value, Error> {
        read(bytes, PhantomData::<Value>)
    }

    #[test]
    fn an_encoded_value_decodes_to_the_same() {
        let all = json!({
            "null": null, "yes": true, "no": false, "text": "ü".repeat(200), "long": "x".repeat(70_000),
            "numbers": [0, 127, 128, 255, 256, 65_535, 65_536, u64::from(u32::MAX), u64::MAX, -1, -32, -33, -200, i64::MIN, 1.5],
            "list": vec![json!({}); 17], "": [],
        });
        let mut bytes = Vec::new();
        write(&all, &mut bytes);
        assert_eq!(value(&bytes).unwrap(), all);
    }

    #[test]
    fn bytes_cut_anywhere_are_refused() {
        let mut bytes = Vec::new();
        write(
            &json!({"a": [1, 300, 70_000, "text", {"b": u64::MAX}], "c": "x".repeat(300)}),
            &mut bytes,
        );
        for cut in 0..bytes.len() {
            assert!(value(&bytes[..cut]).is_err(), "{cut}");
        }
        bytes.push(0xc0);
        assert!(value(&bytes).is_err(), "one more value");
    }

    #[test]
    fn a_false_length_is_refused_and_nesting_is_bounded() {
        // Lists, maps, texts and bytes of length 2^32 - 1.
        for marker in [0xdd, 0xdf, 0xdb, 0xc6] {
            assert!(
                value(&[marker, 255, 255, 255, 255, 0]).is_err(),
                "{marker:x}"
            );
        }
        assert!(value(&[vec![0x91; 64], vec![0xc0]].concat()).is_ok());
        assert!(value(&[vec![0x91; 65], vec![0xc0]].concat()).is_err());
    }

    #[test]
    fn values_without_a_json_form_are_refused() {
        // An extension, an undefined byte, a text that is not UTF-8.
        for bytes in [&[0xd4, 1, 2][..], &[0xc1], &[0xa1, 0xff]] {
            assert!(value(bytes).is_err(), "{bytes:x?}");
        }
    }
}
