//! The size of one entry of a vocabulary or of merges.

use std::{borrow::Cow, collections::HashSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::bounds::{limit, once};

/// The size of one list entry: the length of its texts, and its id if it has one.
#[derive(Default)]
pub(super) struct EntrySize {
    pub(super) bytes: usize,
    pub(super) id: Option<u64>,
}

/// Reads the size of one list entry.
pub(super) struct EntrySeed;

impl<'de> DeserializeSeed<'de> for EntrySeed {
    type Value = EntrySize;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<EntrySize, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for EntrySeed {
    type Value = EntrySize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token or a merge")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<EntrySize, E> {
        Ok(EntrySize {
            bytes: text.len(),
            id: None,
        })
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<EntrySize, E> {
        Ok(EntrySize::default())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<EntrySize, E> {
        Ok(EntrySize::default())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<EntrySize, E> {
        Ok(EntrySize::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<EntrySize, A::Error> {
        let (mut bytes, mut parts) = (0, 0);
        while let Some(part) = pair.next_element_seed(PartSeed)? {
            bytes += part;
            parts += 1;
            limit("an entry has", parts, 2, "parts")?;
        }
        Ok(EntrySize { bytes, id: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut token: A) -> Result<EntrySize, A::Error> {
        let mut seen = HashSet::new();
        let mut size = EntrySize::default();
        while let Some(key) = token.next_key::<Cow<'de, str>>()? {
            once(&mut seen, &key)?;
            match &*key {
                "id" => size.id = Some(token.next_value()?),
                "content" => size.bytes = token.next_value::<Cow<'de, str>>()?.len(),
                _ => {
                    token.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(size)
    }
}

/// One half of a pair, a text or a number, as its number of bytes.
struct PartSeed;

impl<'de> DeserializeSeed<'de> for PartSeed {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<usize, D::Error> {
        reader.deserialize_any(self)
    }
}

impl Visitor<'_> for PartSeed {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<usize, E> {
        Ok(text.len())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<usize, E> {
        Ok(0)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<usize, E> {
        Ok(0)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<usize, E> {
        Ok(0)
    }
}
