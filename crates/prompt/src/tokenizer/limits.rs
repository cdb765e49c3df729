//! Limits of a tokenizer file, checked before a library reads it.
//!
//! The libraries allocate by the largest id, build tables by the number of entries, and apply the
//! file's steps to texts of clients; a failed allocation ends the process. So the file is walked
//! once, without storing its lists.
//!
//! **Invariant**: an accepted file makes the libraries allocate at most a small multiple of its own
//! size.

use std::{borrow::Cow, collections::HashSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{
    bounds::{limit, once},
    entry_size::EntrySeed,
    steps::PipelineSteps,
};

/// Maximum number of tokens of a vocabulary, and of merges. The largest in use have some 520,000.
const MAX_ENTRIES: usize = 1 << 20;

/// Maximum number of added tokens: models of images and sound have some tens of thousands.
const MAX_ADDED: usize = 1 << 17;

/// Maximum bytes of one token. Runs of spaces are the longest.
const MAX_TOKEN_BYTES: usize = 2_048;

/// Maximum bytes of all tokens: tries take some hundred times as much for a vocabulary of their
/// kind.
const MAX_VOCABULARY_BYTES: usize = 16 << 20;

/// Maximum excess of ids over the number of tokens: reserved ones leave gaps.
const ID_GAP: u64 = 1 << 14;

/// Maximum length of the affix before or behind every part of a word.
const MAX_AFFIX_BYTES: usize = 64;

/// Maximum length, in letters, of a word that is searched in the vocabulary piece by piece: that
/// takes cubic time.
const MAX_WORD_LETTERS: u64 = 1_000;

/// Maximum bytes of the description of one stage, such as the normalizer with its character table.
const MAX_STAGE_BYTES: usize = 2 << 20;

/// Checks a file.
pub(super) fn check(json: &[u8]) -> Result<(), String> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let mut found = TokenizerExtent::default();
    FileSeed(&mut found)
        .deserialize(&mut reader)
        .map_err(|error| error.to_string())?;
    reader.end().map_err(|error| error.to_string())?;
    found.check()
}

/// The ids and numbers of a file.
#[derive(Default)]
struct TokenizerExtent {
    tokens: usize,
    bytes: usize,
    highest_id: u64,
    steps: PipelineSteps,
}

impl TokenizerExtent {
    fn add_token<E: Error>(&mut self, bytes: usize, id: Option<u64>) -> Result<(), E> {
        self.tokens += 1;
        self.bytes += bytes;
        self.highest_id = self.highest_id.max(id.unwrap_or(0));
        limit("a token has", bytes, MAX_TOKEN_BYTES, "bytes")?;
        limit("the tokens have", self.bytes, MAX_VOCABULARY_BYTES, "bytes")
    }

    fn check(&self) -> Result<(), String> {
        let limit = self.tokens as u64 + ID_GAP;
        if self.highest_id >= limit {
            let (highest, tokens) = (self.highest_id, self.tokens);
            return Err(format!(
                "it has the id {highest} with {tokens} tokens, expected ids below {limit}"
            ));
        }
        self.steps.check()
    }
}

struct FileSeed<'a>(&'a mut TokenizerExtent);

impl<'de> DeserializeSeed<'de> for FileSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FileSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            once(&mut seen, &key)?;
            match &*key {
                "added_tokens" => map.next_value_seed(ListSeed {
                    found: self.0,
                    kind: ListEntry::Added,
                })?,
                "model" => map.next_value_seed(ModelSeed(self.0))?,
                "normalizer" | "pre_tokenizer" | "post_processor" | "decoder" => {
                    let stage: &RawValue = map.next_value()?;
                    limit("a stage has", stage.get().len(), MAX_STAGE_BYTES, "bytes")?;
                    self.0
                        .steps
                        .add(&key, stage.get())
                        .map_err(A::Error::custom)?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

struct ModelSeed<'a>(&'a mut TokenizerExtent);

impl<'de> DeserializeSeed<'de> for ModelSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ModelSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            once(&mut seen, &key)?;
            match &*key {
                "vocab" => map.next_value_seed(ListSeed {
                    found: self.0,
                    kind: ListEntry::Token,
                })?,
                "merges" => map.next_value_seed(ListSeed {
                    found: self.0,
                    kind: ListEntry::Merge,
                })?,
                "continuing_subword_prefix" | "end_of_word_suffix" | "unk_token" => {
                    let affix = map.next_value::<Option<Cow<'de, str>>>()?;
                    limit(
                        &key,
                        affix.map_or(0, |affix| affix.len()),
                        MAX_AFFIX_BYTES,
                        "bytes",
                    )?;
                }
                "max_input_chars_per_word" => {
                    let letters = map.next_value::<u64>()?;
                    if letters > MAX_WORD_LETTERS {
                        let message =
                            format!("{key} is {letters}, expected at most {MAX_WORD_LETTERS}");
                        return Err(A::Error::custom(message));
                    }
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// The kind of a list's entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListEntry {
    /// Objects with an id and a content.
    Added,
    /// Texts with their ids, or pairs of a text and a number.
    Token,
    /// Texts, or pairs of texts.
    Merge,
}

/// Walks a list, or the vocabulary's object.
struct ListSeed<'a> {
    found: &'a mut TokenizerExtent,
    kind: ListEntry,
}

impl<'de> DeserializeSeed<'de> for ListSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ListSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of tokens or merges")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut entries = 0;
        let most = if self.kind == ListEntry::Added {
            MAX_ADDED
        } else {
            MAX_ENTRIES
        };
        while let Some(entry) = list.next_element_seed(EntrySeed)? {
            entries += 1;
            limit("a list has", entries, most, "entries")?;
            match self.kind {
                ListEntry::Merge => {
                    limit("a merge has", entry.bytes, 2 * MAX_TOKEN_BYTES + 1, "bytes")?
                }
                ListEntry::Added | ListEntry::Token => {
                    self.found.add_token(entry.bytes, entry.id)?
                }
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut vocabulary: A) -> Result<(), A::Error> {
        if self.kind != ListEntry::Token {
            return Err(A::Error::custom(
                "an object stands where a list is expected",
            ));
        }
        let mut entries = 0;
        while let Some(token) = vocabulary.next_key::<Cow<'de, str>>()? {
            entries += 1;
            limit("the vocabulary has", entries, MAX_ENTRIES, "entries")?;
            let id = vocabulary.next_value()?;
            self.found.add_token(token.len(), Some(id))?;
        }
        Ok(())
    }
}
