//! KV events, and what is learnt from them.

use std::{num::NonZeroUsize, time::Duration};

use super::RedisSection;

/// Section `kv_events`.
#[derive(Clone, Debug, PartialEq)]
pub struct KvEventsSection {
    /// Whether streams are followed at all.
    pub enabled: bool,
    /// Bytes that the block index may use.
    pub memory_budget: u64,
    /// How block hashes are computed.
    pub block_hash: BlockHashKind,
    /// Seed of `xxh3`.
    pub block_hash_seed: u64,
    /// Port assumed where an engine does not announce one.
    pub default_port: u16,
    /// Only messages whose topic starts with this.
    pub topic_filter: String,
    /// Whether missed events are asked for.
    pub replay: bool,
    /// Longest accepted message, bytes.
    pub max_message: usize,
    /// Most batches waiting per stream.
    pub queue_batches: usize,
    /// Most events taken per second and stream.
    pub max_events_per_second: u64,
    /// A stream without a message is called stale after this.
    pub stale_after: Duration,
    /// Prediction for workers without a stream.
    pub prediction: PredictionSection,
}

/// `kv_events.block_hash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockHashKind {
    /// XXH3, with a seed.
    Xxh3,
    /// FNV-1a.
    Fnv1a,
}

/// `kv_events.prediction`.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictionSection {
    /// A predicted block is forgotten after this.
    pub ttl: Duration,
    /// Most predicted blocks.
    pub max_blocks: u64,
    /// When there are more, the oldest go until this share is left.
    pub prune_target_ratio: f64,
}

/// Section `kv_cache_index`: the view of prefixes.
#[derive(Clone, Debug, PartialEq)]
pub struct KvCacheIndexSection {
    /// Whether its streams are followed.
    pub enabled: bool,
    /// The server that it is kept in and shared through (`backend: redis`); `None` = this process's memory.
    pub redis: Option<RedisSection>,
    /// Most prefixes.
    pub max_entries: NonZeroUsize,
    /// A prefix that no event confirmed for this long is forgotten.
    pub entry_ttl: Duration,
    /// How backends are scored.
    pub scoring: ScoringSection,
    /// What counts beside GPU memory.
    pub offloading: Offloading,
    /// The streams.
    pub event_sources: Vec<PrefixEventSource>,
}

/// `kv_cache_index.scoring`, each 0..1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoringSection {
    /// Overlap is measured against the most that any backend holds, as in the published formula, not against the prompt.
    pub relative: bool,
    /// Weight of cached tokens.
    pub overlap_weight: f64,
    /// Weight of a low load.
    pub load_weight: f64,
    /// Weight of requests that succeeded.
    pub health_weight: f64,
    /// Below this overlap the scores do not decide.
    pub min_overlap_threshold: f64,
    /// Weight of prefixes in GPU memory.
    pub gpu_tier_weight: f64,
    /// Weight of prefixes in storage.
    pub storage_tier_weight: f64,
}

/// `kv_cache_index.storage_offloading`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offloading {
    /// Only GPU memory counts.
    Off,
    /// What was offloaded is in the second tier.
    On {
        /// What was evicted too.
        evicted_too: bool,
    },
}

/// One entry of `kv_cache_index.event_sources`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixEventSource {
    /// The name of the worker whose cache it speaks of; one of [`crate::Settings::workers`].
    pub backend_name: String,
    /// An `http`, `https`, `ws` or `wss` URL.
    pub endpoint: String,
    /// The second wait before it is connected to again.
    pub reconnect_interval: Duration,
    /// What its hashes are.
    pub prefix_hash_kind: PrefixHashKind,
}

/// `kv_cache_index.event_sources[].prefix_hash_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixHashKind {
    /// Of the text of a prefix.
    PrefixKey,
    /// Of a prefix's blocks.
    SequenceHash,
}
