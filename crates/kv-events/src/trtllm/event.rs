//! Decoded events, with the fields that an index uses.

use std::borrow::Cow;

use kv_blocks::EngineHash;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use crate::{
    BatchError, EventError,
    errors::cut,
    json::{self, JsonHash},
};

/// Most events in one list. A decoded event takes more memory than its shortest text.
pub const MAX_EVENTS: usize = 1 << 17;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrtEvent {
    /// The event's number, from 0 on, in the sequence of its rank.
    pub event_id: u64,
    /// The rank of attention data parallelism; `None` without it.
    pub rank: Option<u32>,
    /// Tokens of its attention window; `None` in older releases.
    pub window: Option<i64>,
    /// The change that it reports, or a decode error.
    pub data: Result<TrtData, EventError>,
}

/// A change of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrtData {
    /// The pools were created.
    Created,
    /// Consecutive blocks became reusable.
    Stored {
        /// The block in front of the first one; `None` begins a sequence.
        parent: Option<EngineHash>,
        /// The blocks, first one first.
        blocks: Vec<TrtBlock>,
    },
    /// Blocks were removed from every level.
    Removed {
        /// The blocks.
        hashes: Vec<EngineHash>,
    },
    /// A block moved to another level, or got another priority.
    Updated {
        /// The block.
        hash: EngineHash,
        /// The level it left and the one it went to.
        level: Option<(u32, u32)>,
    },
    /// A kind that this release does not know.
    Unknown,
}

/// One block that became reusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrtBlock {
    /// The engine's name of the block.
    pub hash: EngineHash,
    /// Its tokens; fewer than a block holds at the end of a sequence.
    pub tokens: Vec<u32>,
    /// Whether its content is its tokens alone.
    pub is_plain: bool,
    /// 0 is the device, 1 the host.
    pub level: u32,
}

/// Decodes a list of events; a malformed event does not affect the others.
pub fn decode(payload: &[u8]) -> Result<Vec<Result<TrtEvent, EventError>>, BatchError> {
    let unusable = |reason: String| BatchError {
        bytes: payload.len(),
        reason: cut(reason),
    };
    let mut events = Vec::new();
    json::each(payload, |event| {
        if events.len() == MAX_EVENTS {
            return Err(format!(
                "it has more than {MAX_EVENTS} events: poll more often"
            ));
        }
        events.push(read(event));
        Ok(())
    })
    .map_err(|error| unusable(error.to_string()))?
    .map_err(unusable)?;
    Ok(events)
}

#[derive(Deserialize)]
struct Envelope<'a> {
    event_id: u64,
    #[serde(borrow)]
    data: &'a RawValue,
    window_size: Option<i64>,
    attention_dp_rank: Option<u32>,
}

#[derive(Deserialize)]
struct DataKind<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
struct StoredData {
    parent_hash: Option<JsonHash>,
    blocks: Vec<WireBlock>,
}

#[derive(Deserialize)]
struct WireBlock {
    block_hash: JsonHash,
    tokens: Vec<WireToken>,
    cache_level: Option<u32>,
    /// Multimodal keys, in newer releases.
    mm_keys: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct WireToken {
    token_id: u32,
    /// Distinguishes equal tokens of different images or prompt tables; 0 without any.
    token_extra_id: Option<u64>,
}

#[derive(Deserialize)]
struct RemovedData {
    block_hashes: Vec<JsonHash>,
}

#[derive(Deserialize)]
struct UpdatedData {
    block_hash: JsonHash,
    cache_level: Option<LevelChange>,
}

#[derive(Deserialize)]
struct LevelChange {
    new_value: u32,
    old_value: u32,
}

fn read(event: &RawValue) -> Result<TrtEvent, EventError> {
    let envelope: Envelope<'_> = parse(event)?;
    let data = data(envelope.data);
    Ok(TrtEvent {
        event_id: envelope.event_id,
        rank: envelope.attention_dp_rank,
        window: envelope.window_size,
        data,
    })
}

fn data(data: &RawValue) -> Result<TrtData, EventError> {
    let kind: DataKind<'_> = parse(data)?;
    Ok(match &*kind.kind {
        "created" => TrtData::Created,
        "stored" => {
            let stored: StoredData = parse(data)?;
            TrtData::Stored {
                parent: stored.parent_hash.map(hash),
                blocks: stored.blocks.into_iter().map(block).collect(),
            }
        }
        "removed" => {
            let removed: RemovedData = parse(data)?;
            TrtData::Removed {
                hashes: removed.block_hashes.into_iter().map(hash).collect(),
            }
        }
        "updated" => {
            let updated: UpdatedData = parse(data)?;
            let level = updated
                .cache_level
                .map(|change| (change.old_value, change.new_value));
            TrtData::Updated {
                hash: hash(updated.block_hash),
                level,
            }
        }
        _ => TrtData::Unknown,
    })
}

fn parse<'a, T: Deserialize<'a>>(value: &'a RawValue) -> Result<T, EventError> {
    serde_json::from_str(value.get()).map_err(|error| EventError::new(error.to_string()))
}

fn hash(name: JsonHash) -> EngineHash {
    EngineHash(name.0)
}

fn block(sent: WireBlock) -> TrtBlock {
    let no_extra = sent
        .tokens
        .iter()
        .all(|token| token.token_extra_id.unwrap_or(0) == 0);
    TrtBlock {
        hash: hash(sent.block_hash),
        tokens: sent.tokens.iter().map(|token| token.token_id).collect(),
        is_plain: no_extra && sent.mm_keys.is_none_or(|keys| keys.is_empty()),
        level: sent.cache_level.unwrap_or(0),
    }
}
