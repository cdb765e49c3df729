//! Reads the fields that a call uses from a JSON or msgpack body.
//!
//! **Invariant**: no value of a body takes more memory than a few times its own bytes, and nesting
//! costs no stack beyond a fixed depth.

use std::{cell::Cell, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use crate::{
    error::{CallError, CallErrorKind as Fault},
    fields::{FieldKind, FieldValue},
    msgpack,
};

/// Name and kind of a field that a call uses.
pub(crate) type FieldSpec = (&'static str, FieldKind);

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Msgpack,
}

/// Fields that the body contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldMap(Vec<(&'static str, FieldValue)>);

impl FieldMap {
    /// Reads the `fields` of a body and skips all others.
    pub(crate) fn read(
        body: &[u8],
        encoding: Encoding,
        fields: &'static [FieldSpec],
    ) -> Result<Self, CallError> {
        let at = Cell::new(None);
        let seed = FieldReader { fields, at: &at };
        let read = match encoding {
            Encoding::Json => {
                let mut json = serde_json::Deserializer::from_slice(body);
                let form = seed.deserialize(&mut json);
                form.and_then(|form| json.end().map(|()| form))
                    .map_err(|error| error.to_string())
            }
            Encoding::Msgpack => msgpack::read(body, seed).map_err(|error| error.to_string()),
        };
        read.map_err(|error| match at.get() {
            Some(field) => CallError::field(field, format!("{field}: {error}")),
            None => CallError::new(Fault::Body, format!("the body cannot be read: {error}")),
        })
    }

    fn value_of(&self, field: &str) -> Option<&FieldValue> {
        self.0
            .iter()
            .find(|(known, _)| *known == field)
            .map(|(_, value)| value)
    }

    /// Returns whether the field is present and not null.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.value_of(field)
            .is_some_and(|value| *value != FieldValue::Null)
    }

    /// Returns a text field; an empty text and null count as absent.
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        match self.value_of(field) {
            Some(FieldValue::Text(text)) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    pub(crate) fn required_text(&self, field: &'static str) -> Result<&str, CallError> {
        self.text(field)
            .ok_or_else(|| missing(field, "a text that is not empty"))
    }

    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        match self.value_of(field) {
            Some(FieldValue::Number(number)) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn required_number(&self, field: &'static str) -> Result<u64, CallError> {
        self.number(field)
            .ok_or_else(|| missing(field, "a whole number"))
    }

    pub(crate) fn tokens(&self, field: &'static str) -> Result<&[u32], CallError> {
        match self.value_of(field) {
            Some(FieldValue::Tokens(tokens)) => Ok(tokens),
            _ => Err(missing(field, "a list of token ids")),
        }
    }

    pub(crate) fn hashes(&self, field: &str) -> Option<&[u64]> {
        match self.value_of(field) {
            Some(FieldValue::Hashes(hashes)) => Some(hashes),
            _ => None,
        }
    }
}

/// Returns the error for a required field that is missing.
pub(crate) fn missing(field: &'static str, expected: &str) -> CallError {
    CallError::field(field, format!("{field} is missing: expected {expected}"))
}

/// Visitor that reads the fields; `at` is the field that it is reading.
struct FieldReader<'a> {
    fields: &'static [FieldSpec],
    at: &'a Cell<Option<&'static str>>,
}

impl<'de> DeserializeSeed<'de> for FieldReader<'_> {
    type Value = FieldMap;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<FieldMap, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FieldReader<'_> {
    type Value = FieldMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the call's fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FieldMap, A::Error> {
        let mut form = FieldMap::default();
        while let Some(known) = map.next_key_seed(FieldName(self.fields))? {
            let Some((field, kind)) = known else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            self.at.set(Some(field));
            if form.value_of(field).is_some() {
                return Err(A::Error::custom("is given twice: leave one out"));
            }
            form.0.push((field, map.next_value_seed(kind)?));
            self.at.set(None);
        }
        Ok(form)
    }
}

/// Resolves a key to one of the fields, if it names one.
struct FieldName(&'static [FieldSpec]);

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Option<FieldSpec>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for FieldName {
    type Value = Option<FieldSpec>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|(field, _)| *field == key).copied())
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const FIELDS: &[FieldSpec] = &[
        ("model", FieldKind::Text),
        ("block_size", FieldKind::Number),
        ("token_ids", FieldKind::Tokens),
        ("seq_hashes", FieldKind::Hashes),
    ];

    fn json(text: &str) -> Result<FieldMap, CallError> {
        FieldMap::read(text.as_bytes(), Encoding::Json, FIELDS)
    }

    #[test]
    #[contract("MC5")]
    fn hashes_above_2_to_the_53_survive_as_numbers_and_as_digits() {
        let form = json(
            r#"{"seq_hashes": [18446744073709551615, "18446744073709551615", 9007199254740993, "0"]}"#,
        );
        assert_eq!(
            form.unwrap().hashes("seq_hashes").unwrap(),
            [u64::MAX, u64::MAX, (1 << 53) + 1, 0]
        );
    }

    #[test]
    fn fields_that_the_call_does_not_use_are_skipped() {
        let form = json(r#"{"x": {"model": [1, {"y": null}]}, "model": "m", "lora": 7}"#).unwrap();
        assert_eq!(
            form,
            FieldMap(vec![("model", FieldValue::Text("m".into()))])
        );
    }

    #[test]
    fn an_error_names_the_field_and_the_expected_form() {
        for (body, field, expected) in [
            (
                r#"{"block_size": "16"}"#,
                Some("block_size"),
                r#"string "16", expected a whole number"#,
            ),
            (
                r#"{"block_size": -1}"#,
                Some("block_size"),
                "expected a whole number",
            ),
            (
                r#"{"block_size": 1.5}"#,
                Some("block_size"),
                "expected a whole number",
            ),
            (
                r#"{"token_ids": [1, -1]}"#,
                Some("token_ids"),
                "expected a token id from 0 to 4294967295",
            ),
            (
                r#"{"token_ids": [4294967296]}"#,
                Some("token_ids"),
                "expected a token id",
            ),
            (
                r#"{"token_ids": [[1]]}"#,
                Some("token_ids"),
                "expected a token id",
            ),
            (
                r#"{"token_ids": 1}"#,
                Some("token_ids"),
                "expected a list of token ids",
            ),
            (
                r#"{"seq_hashes": ["0x1f"]}"#,
                Some("seq_hashes"),
                "as a number or as decimal digits",
            ),
            (
                r#"{"seq_hashes": [""]}"#,
                Some("seq_hashes"),
                "as decimal digits",
            ),
            (
                r#"{"seq_hashes": [18446744073709551616]}"#,
                Some("seq_hashes"),
                "expected a hash from 0",
            ),
            (
                r#"{"seq_hashes": ["18446744073709551616"]}"#,
                Some("seq_hashes"),
                "expected a hash from 0",
            ),
            (
                r#"{"model": "a", "model": "b"}"#,
                Some("model"),
                "given twice",
            ),
            (r#"{"model": 1}"#, Some("model"), "expected a text"),
            (r#"{"model": "m"} x"#, None, "trailing characters"),
            (r#"{"model": "m""#, None, "EOF"),
            ("[1]", None, "expected an object"),
            ("", None, "EOF"),
            ("null", None, "expected an object"),
        ] {
            let error = json(body).unwrap_err();
            assert_eq!(
                (error.kind, error.field),
                (Fault::Body, field),
                "{body}: {error:?}"
            );
            assert!(error.message.contains(expected), "{body}: {error:?}");
        }
    }

    #[test]
    fn nesting_is_bounded_in_both_encodings() {
        assert!(json(&format!(r#"{{"x": {}"#, "[".repeat(1 << 20))).is_err());
        // {"x": [[[...
        let nested = [&[0x81, 0xa1, b'x'][..], &vec![0x91; 1 << 20]].concat();
        assert!(FieldMap::read(&nested, Encoding::Msgpack, FIELDS).is_err());
    }

    #[test]
    fn the_length_of_a_text_is_bounded() {
        let body = |length: usize| format!(r#"{{"model": "{}"}}"#, "m".repeat(length));
        assert!(json(&body(1024)).is_ok());
        assert_eq!(json(&body(1025)).unwrap_err().field, Some("model"));
    }
}
