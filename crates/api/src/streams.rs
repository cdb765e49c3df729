//! KV event streams.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;

/// `GET /admin/streams`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamReports {
    /// One entry per worker and rank.
    pub streams: Vec<StreamReport>,
}

/// One stream as `/admin/streams` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamReport {
    /// The worker's name.
    pub worker: Arc<str>,
    /// The rank whose cache the events describe.
    pub dp_rank: u32,
    /// Kind of source.
    #[schemars(extend("enum" = ["zmq", "sse", "ws", "poll", "nats"]))]
    pub source: Name,
    /// The publisher's socket or URL.
    pub endpoint: String,
    /// The replay socket, if there is one.
    pub replay_endpoint: Option<String>,
    /// How far the index follows the stream.
    #[schemars(extend("enum" = ["connecting", "replaying", "live", "gapped", "stale", "quarantined"]))]
    pub state: Name,
    /// Number of publisher lives seen; 1 is the first.
    pub epoch: u64,
    /// Sequence number of the last batch applied.
    pub last_seq: Option<u64>,
    /// Batches received and not yet applied.
    pub lag_events: u64,
    /// Age of the last batch when it was applied, by both clocks; `null` before the first.
    pub lag_ms: Option<f64>,
    /// Arrival time of the last batch, RFC 3339; `null` before the first.
    pub last_event_at: Option<String>,
    /// Totals.
    pub counts: StreamCounts,
    /// The last error; of a worker that was discovered or registered a fixed word: `no_connection`,
    /// `unusable_messages` or `earlier_failure`.
    pub last_error: Option<String>,
}

/// Totals over one stream's life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamCounts {
    /// Batches applied.
    pub batches: u64,
    /// Events in them.
    pub events: u64,
    /// Events that the index applied.
    pub applied: u64,
    /// Events without meaning or effect for the index.
    pub ignored: u64,
    /// Unusable batches, messages and events.
    pub decode_errors: u64,
    /// Stored events whose parent is unknown.
    pub orphans: u64,
    /// Batches received twice.
    pub duplicates: u64,
    /// Gaps in the batch numbers.
    pub gaps: u64,
    /// Batches that no replay could bring.
    #[serde(rename = "holes")]
    pub lost_batches: u64,
    /// Detected restarts of the publisher.
    pub restarts: u64,
    /// Batches dropped because a buffer was full or the stream was quarantined.
    pub dropped: u64,
    /// Events with hashes of the publisher's own, indexed by their tokens.
    pub rehashed: u64,
    /// Events with an unknown medium.
    pub unlisted_media: u64,
}
