//! An event cut into the bytes of its fields, whichever way it is encoded.

use super::event::EventError;
use crate::wire::{Broken, Head, Reader};

/// Everything an event may carry, by the names of the map encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    BlockHashes,
    ParentBlockHash,
    TokenIds,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    GroupIdx,
    SpecKind,
    SlidingWindow,
    Locality,
    Ownership,
    SessionId,
    LookaheadTokenIds,
    CacheSalt,
}

const COUNT: usize = 16;

const NAMES: [(&[u8], Field); COUNT] = [
    (b"block_hashes", Field::BlockHashes),
    (b"parent_block_hash", Field::ParentBlockHash),
    (b"token_ids", Field::TokenIds),
    (b"block_size", Field::BlockSize),
    (b"lora_id", Field::LoraId),
    (b"medium", Field::Medium),
    (b"lora_name", Field::LoraName),
    (b"extra_keys", Field::ExtraKeys),
    (b"group_idx", Field::GroupIdx),
    (b"kv_cache_spec_kind", Field::SpecKind),
    (b"kv_cache_spec_sliding_window", Field::SlidingWindow),
    (b"locality", Field::Locality),
    (b"ownership", Field::Ownership),
    (b"session_id", Field::SessionId),
    (b"lookahead_token_ids", Field::LookaheadTokenIds),
    (b"cache_salt", Field::CacheSalt),
];

/// What the positions behind the tag mean in a `BlockStored` array; older publishers write fewer of them.
const STORED_POSITIONS: [Field; 11] = [
    Field::BlockHashes,
    Field::ParentBlockHash,
    Field::TokenIds,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::GroupIdx,
    Field::SpecKind,
    Field::SlidingWindow,
];

/// What the positions behind the tag mean in a `BlockRemoved` array.
const REMOVED_POSITIONS: [Field; 3] = [Field::BlockHashes, Field::Medium, Field::GroupIdx];

/// The tag and the undecoded fields of one event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    pub(super) tag: &'a str,
    values: [Option<&'a [u8]>; COUNT],
}

impl<'a> Fields<'a> {
    /// Steps over one event. The outer error means that the batch cannot be read any further.
    pub(super) fn scan(reader: &mut Reader<'a>) -> Result<Result<Self, EventError>, Broken> {
        match reader.head()? {
            Head::Array(len) => Self::scan_array(reader, len),
            Head::Map(pairs) => Self::scan_map(reader, pairs),
            _ => Ok(Err(EventError {
                reason: "an event is an array or a map",
            })),
        }
    }

    /// Whether the field was sent at all, be it as nil.
    pub(super) fn has(&self, field: Field) -> bool {
        self.values[field as usize].is_some()
    }

    /// The field's value, ready to be read; nil counts as absent.
    pub(super) fn get(&self, field: Field) -> Option<Reader<'a>> {
        let value = self.values[field as usize]?;
        // 0xc0 is nil.
        if value == [0xc0] {
            None
        } else {
            Some(Reader::new(value))
        }
    }

    fn scan_array(reader: &mut Reader<'a>, len: usize) -> Result<Result<Self, EventError>, Broken> {
        if len == 0 {
            return Ok(Err(EventError {
                reason: "an event array starts with its tag",
            }));
        }
        let tag = text_of(reader.value()?);
        let positions: &[Field] = match tag {
            Ok("BlockStored") => &STORED_POSITIONS,
            Ok("BlockRemoved") => &REMOVED_POSITIONS,
            _ => &[],
        };
        let mut values = [None; COUNT];
        for position in 0..len - 1 {
            let value = reader.value()?;
            if let Some(field) = positions.get(position) {
                values[*field as usize] = Some(value);
            }
        }
        Ok(tag.map(|tag| Self { tag, values }.with_metadata_told_apart()))
    }

    /// Where vLLM has the adapter's name, SGLang 0.5.18 and 0.5.19 put a map with the salt.
    fn with_metadata_told_apart(mut self) -> Self {
        let name = self.values[Field::LoraName as usize];
        let Some(Ok(Head::Map(pairs))) = name.map(|bytes| Reader::new(bytes).head()) else {
            return self;
        };
        self.values[Field::LoraName as usize] = None;
        let mut reader = Reader::new(name.unwrap_or_default());
        let mut salt = || -> Result<Option<&'a [u8]>, Broken> {
            reader.head()?;
            for _ in 0..pairs {
                let (key, value) = (reader.value()?, reader.value()?);
                if Reader::new(key).head()? == Head::Text(b"cache_salt") {
                    return Ok(Some(value));
                }
            }
            Ok(None)
        };
        self.values[Field::CacheSalt as usize] = salt().ok().flatten();
        self
    }

    fn scan_map(reader: &mut Reader<'a>, pairs: usize) -> Result<Result<Self, EventError>, Broken> {
        let mut tag = None;
        let mut values = [None; COUNT];
        let mut twice = false;
        for _ in 0..pairs {
            let (key, value) = (reader.value()?, reader.value()?);
            let Head::Text(key) = Reader::new(key).head()? else {
                continue;
            };
            if key == b"type" {
                twice |= tag.replace(value).is_some();
            } else if let Some((_, field)) = NAMES.iter().find(|(name, _)| *name == key) {
                twice |= values[*field as usize].replace(value).is_some();
            }
        }
        let Some(tag) = tag else {
            return Ok(Err(EventError {
                reason: "an event map has its tag under type",
            }));
        };
        if twice {
            return Ok(Err(EventError {
                reason: "a key occurs twice",
            }));
        }
        Ok(text_of(tag).map(|tag| Self { tag, values }))
    }
}

fn text_of(value: &[u8]) -> Result<&str, EventError> {
    let wrong = EventError {
        reason: "the tag is no text",
    };
    match Reader::new(value).head() {
        Ok(Head::Text(bytes)) => std::str::from_utf8(bytes).map_err(|_| wrong),
        _ => Err(wrong),
    }
}
