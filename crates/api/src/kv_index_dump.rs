//! The content of the block index.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;

/// `GET /admin/kv-index/digest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KvIndexDigest {
    /// One entry per target and tier with blocks.
    pub targets: Vec<TargetDigest>,
}

/// Digest of one tier of one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetDigest {
    /// The worker's name; `null` if it has just left.
    pub worker: Option<Arc<str>>,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// The tier.
    #[schemars(extend("enum" = ["device", "host", "disk", "remote"]))]
    pub tier: Name,
    /// Blocks in it, without speculative and predicted ones.
    pub blocks: u64,
    /// 16 hex digits over namespace and sequence hash of its blocks in any order: equal content
    /// gives an equal digest on every machine.
    pub digest: String,
}

/// One line of `GET /admin/kv-index/dump`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KvIndexDumpRow {
    /// The model of the block's namespace.
    pub model: Arc<str>,
    /// Its LoRA adapter.
    pub lora: Option<Arc<str>>,
    /// Digest of its cache salt, 16 hex digits: the salt itself is a secret.
    pub salt: Option<Arc<str>>,
    /// Tokens per block.
    pub block_size: u32,
    /// The holder's name; `null` if it has just left.
    pub worker: Option<Arc<str>>,
    /// The holder's data-parallel rank.
    pub dp_rank: u32,
    /// The tier.
    #[schemars(extend("enum" = ["device", "host", "disk", "remote"]))]
    pub tier: Name,
    /// Blocks in front of it.
    pub depth: u32,
    /// The block's rolling hash, keyed by the salt if there is one.
    pub hash: String,
    /// The hash of the block in front of it; `null` at depth 0.
    pub parent: Option<String>,
}

impl KvIndexDumpRow {
    /// Reads the rows of a JSON list, or of JSON lines.
    ///
    /// # Errors
    ///
    /// The reason why the text is neither.
    pub fn read_all(text: &str) -> Result<Vec<Self>, String> {
        let rows = if text.trim_start().starts_with('[') {
            serde_json::from_str(text)
        } else {
            serde_json::Deserializer::from_str(text)
                .into_iter::<Self>()
                .collect()
        };
        rows.map_err(|error| format!("text is no array of rows of dump_events(): {error}"))
    }
}

/// An event of `GET /v1/kv_events` about the stream itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum KvStreamNotice {
    /// The initial state is complete.
    SnapshotEnd {
        /// Blocks in it.
        blocks: u64,
    },
    /// The subscriber was too slow, and the stream ends.
    Lagged {
        /// Number of lost changes, if known.
        lost: Option<u64>,
        /// The next step.
        message: Name,
    },
}
