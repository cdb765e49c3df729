//! The split of an event into the bytes of its fields, in either encoding.

use super::event_error::VllmEventError;
use crate::wire::{MsgpackError, MsgpackHead, MsgpackReader};

/// The fields of an event, by the names of the map encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VllmField {
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

const NAMES: [(&[u8], VllmField); COUNT] = [
    (b"block_hashes", VllmField::BlockHashes),
    (b"parent_block_hash", VllmField::ParentBlockHash),
    (b"token_ids", VllmField::TokenIds),
    (b"block_size", VllmField::BlockSize),
    (b"lora_id", VllmField::LoraId),
    (b"medium", VllmField::Medium),
    (b"lora_name", VllmField::LoraName),
    (b"extra_keys", VllmField::ExtraKeys),
    (b"group_idx", VllmField::GroupIdx),
    (b"kv_cache_spec_kind", VllmField::SpecKind),
    (b"kv_cache_spec_sliding_window", VllmField::SlidingWindow),
    (b"locality", VllmField::Locality),
    (b"ownership", VllmField::Ownership),
    (b"session_id", VllmField::SessionId),
    (b"lookahead_token_ids", VllmField::LookaheadTokenIds),
    (b"cache_salt", VllmField::CacheSalt),
];

/// Fields by position behind the tag in a `BlockStored` array; older publishers write fewer of
/// them.
const STORED_POSITIONS: [VllmField; 11] = [
    VllmField::BlockHashes,
    VllmField::ParentBlockHash,
    VllmField::TokenIds,
    VllmField::BlockSize,
    VllmField::LoraId,
    VllmField::Medium,
    VllmField::LoraName,
    VllmField::ExtraKeys,
    VllmField::GroupIdx,
    VllmField::SpecKind,
    VllmField::SlidingWindow,
];

/// Fields by position behind the tag in a `BlockRemoved` array.
const REMOVED_POSITIONS: [VllmField; 3] = [
    VllmField::BlockHashes,
    VllmField::Medium,
    VllmField::GroupIdx,
];

/// The tag and the undecoded fields of one event.
#[derive(Clone, Copy, Debug)]
pub(super) struct VllmFields<'a> {
    pub(super) tag: &'a str,
    values: [Option<&'a [u8]>; COUNT],
}

impl<'a> VllmFields<'a> {
    /// Splits one event into its fields. The outer error means that the batch cannot be read any
    /// further.
    pub(super) fn scan(
        reader: &mut MsgpackReader<'a>,
    ) -> Result<Result<Self, VllmEventError>, MsgpackError> {
        match reader.head()? {
            MsgpackHead::Array(len) => Self::scan_array(reader, len),
            MsgpackHead::Map(pairs) => Self::scan_map(reader, pairs),
            _ => Ok(Err(VllmEventError {
                reason: "an event is an array or a map",
            })),
        }
    }

    /// Returns whether the field was sent, even as nil.
    pub(super) fn has(&self, field: VllmField) -> bool {
        self.values[field as usize].is_some()
    }

    /// Returns a reader of the field's value; nil counts as absent.
    pub(super) fn get(&self, field: VllmField) -> Option<MsgpackReader<'a>> {
        let value = self.values[field as usize]?;
        // 0xc0 is nil.
        if value == [0xc0] {
            None
        } else {
            Some(MsgpackReader::new(value))
        }
    }

    fn scan_array(
        reader: &mut MsgpackReader<'a>,
        len: usize,
    ) -> Result<Result<Self, VllmEventError>, MsgpackError> {
        if len == 0 {
            return Ok(Err(VllmEventError {
                reason: "an event array starts with its tag",
            }));
        }
        let tag = text_of(reader.value()?);
        let positions: &[VllmField] = match tag {
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
        Ok(tag.map(|tag| Self { tag, values }.with_metadata_separated()))
    }

    /// Moves the salt out of the adapter's name: at the position of vLLM's adapter name, SGLang
    /// 0.5.18 and 0.5.19 write a map with the salt.
    fn with_metadata_separated(mut self) -> Self {
        let name = self.values[VllmField::LoraName as usize];
        let Some(Ok(MsgpackHead::Map(pairs))) = name.map(|bytes| MsgpackReader::new(bytes).head())
        else {
            return self;
        };
        self.values[VllmField::LoraName as usize] = None;
        let mut reader = MsgpackReader::new(name.unwrap_or_default());
        let mut salt = || -> Result<Option<&'a [u8]>, MsgpackError> {
            reader.head()?;
            for _ in 0..pairs {
                let (key, value) = (reader.value()?, reader.value()?);
                if MsgpackReader::new(key).head()? == MsgpackHead::Text(b"cache_salt") {
                    return Ok(Some(value));
                }
            }
            Ok(None)
        };
        self.values[VllmField::CacheSalt as usize] = salt().ok().flatten();
        self
    }

    fn scan_map(
        reader: &mut MsgpackReader<'a>,
        pairs: usize,
    ) -> Result<Result<Self, VllmEventError>, MsgpackError> {
        let mut tag = None;
        let mut values = [None; COUNT];
        let mut twice = false;
        for _ in 0..pairs {
            let (key, value) = (reader.value()?, reader.value()?);
            let MsgpackHead::Text(key) = MsgpackReader::new(key).head()? else {
                continue;
            };
            if key == b"type" {
                twice |= tag.replace(value).is_some();
            } else if let Some((_, field)) = NAMES.iter().find(|(name, _)| *name == key) {
                twice |= values[*field as usize].replace(value).is_some();
            }
        }
        let Some(tag) = tag else {
            return Ok(Err(VllmEventError {
                reason: "an event map has its tag under type",
            }));
        };
        if twice {
            return Ok(Err(VllmEventError {
                reason: "a key occurs twice",
            }));
        }
        Ok(text_of(tag).map(|tag| Self { tag, values }))
    }
}

fn text_of(value: &[u8]) -> Result<&str, VllmEventError> {
    let wrong = VllmEventError {
        reason: "the tag is no text",
    };
    match MsgpackReader::new(value).head() {
        Ok(MsgpackHead::Text(bytes)) => std::str::from_utf8(bytes).map_err(|_| wrong),
        _ => Err(wrong),
    }
}
