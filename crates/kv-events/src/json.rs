//! Bounded reading of JSON: the values of an array one at a time, and exact numbers.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// Calls `take` with each value of an array; stops at its first error.
pub(crate) fn each<'de, E>(
    bytes: &'de [u8],
    take: impl FnMut(&'de RawValue) -> Result<(), E>,
) -> serde_json::Result<Result<(), E>> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let taken = reader.deserialize_seq(ElementSeed(take))?;
    if taken.is_ok() {
        reader.end()?;
    }
    Ok(taken)
}

struct ElementSeed<F>(F);

impl<'de, E, F: FnMut(&'de RawValue) -> Result<(), E>> Visitor<'de> for ElementSeed<F> {
    type Value = Result<(), E>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut values: A) -> Result<Self::Value, A::Error> {
        while let Some(value) = values.next_element()? {
            if let Err(error) = (self.0)(value) {
                // The remaining values are skipped, or the parser would report them instead.
                while values.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }
}

/// Parses a whole number below 2^64 in decimal digits only.
pub(crate) fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

/// An engine's name of a block: a number, negative where its language has no unsigned ones, or its
/// decimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JsonHash(pub(crate) u64);

impl<'de> Deserialize<'de> for JsonHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl Visitor<'_> for AnyValue {
            type Value = JsonHash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block hash: a 64-bit number, or its decimal digits as text")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<JsonHash, E> {
                Ok(JsonHash(value))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<JsonHash, E> {
                Ok(JsonHash(value.cast_unsigned()))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<JsonHash, E> {
                digits(value)
                    .map(JsonHash)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(value), &self))
            }
        }
        deserializer.deserialize_any(AnyValue)
    }
}

/// Returns the value's text, if it is a string.
pub(crate) fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<BorrowedText<'_>>(value.get())
        .ok()
        .map(|text| text.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(json: &str) -> Option<u64> {
        serde_json::from_str::<JsonHash>(json)
            .ok()
            .map(|name| name.0)
    }

    #[test]
    fn hashes_are_exact_above_2_to_the_53_and_signed_ones_are_converted() {
        assert_eq!(name("18446744073709551615"), Some(u64::MAX));
        assert_eq!(name("\"9007199254740993\""), Some(9_007_199_254_740_993));
        assert_eq!(name("-1"), Some(u64::MAX));
        for wrong in [
            "18446744073709551616",
            "1.5",
            "\"\"",
            "\"+1\"",
            "\"0x1\"",
            "null",
            "[1]",
            "true",
        ] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_array_is_read_completely_or_not_at_all() {
        let count = |json: &str| {
            let mut seen = 0;
            let all = each(json.as_bytes(), |_| {
                seen += 1;
                if seen > 3 { Err(()) } else { Ok(()) }
            });
            (all.map_err(|_| ()), seen)
        };
        assert_eq!(count(" [1, {\"a\": [2]}, \"x\"] "), (Ok(Ok(())), 3));
        assert_eq!(count("[1,2,3,4,5,6]"), (Ok(Err(())), 4));
        assert_eq!(count("[]").0, Ok(Ok(())));
        for broken in ["[1,2", "[1] 2", "{}", "", "[1,]", "[\"\u{1}\"]"] {
            assert!(count(broken).0.is_err(), "{broken}");
        }
        let deep = "[".repeat(1_000_000);
        assert!(count(&deep).0.is_err(), "nesting uses no stack");
    }
}
