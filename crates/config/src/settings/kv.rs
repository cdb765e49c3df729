//! KV events and predictions.

use std::{num::NonZeroUsize, time::Duration};

use super::RedisSection;

/// Section `kv_events`.
#[derive(Clone, Debug, PartialEq)]
pub struct KvEventsSection {
    /// Whether event streams are followed.
    pub enabled: bool,
    /// Byte budget of the block index.
    pub memory_budget: u64,
    /// Hash function of blocks.
    pub block_hash: BlockHashKind,
    /// Seed of `xxh3`.
    pub block_hash_seed: u64,
    /// Port used if an engine does not announce one.
    pub default_port: u16,
    /// Topic prefix; other messages are ignored.
    pub topic_filter: String,
    /// Whether missed events are replayed.
    pub replay: bool,
    /// Longest accepted message, bytes.
    pub max_message: usize,
    /// Most batches queued per stream.
    pub queue_batches: usize,
    /// Most events processed per second and stream.
    pub max_events_per_second: u64,
    /// Time without a message after which a stream is stale.
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
    /// Lifetime of a predicted block.
    pub ttl: Duration,
    /// Most predicted blocks.
    pub max_blocks: u64,
    /// Above the limit, the oldest blocks are removed until this share is left.
    pub prune_target_ratio: f64,
}

/// Section `kv_cache_index`: the view of prefixes.
#[derive(Clone, Debug, PartialEq)]
pub struct KvCacheIndexSection {
    /// Whether its streams are followed.
    pub enabled: bool,
    /// Redis server that stores and shares it (`backend: redis`); `None` = this process's memory.
    pub redis: Option<RedisSection>,
    /// Most prefixes.
    pub max_entries: NonZeroUsize,
    /// Time after which a prefix without a confirming event is removed.
    pub entry_ttl: Duration,
    /// Scoring of backends.
    pub scoring: ScoringSection,
    /// Tiers besides GPU memory.
    pub offloading: Offloading,
    /// Event streams.
    pub event_sources: Vec<PrefixEventSource>,
}

/// `kv_cache_index.scoring`, each 0..1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoringSection {
    /// Whether overlap is relative to the most that any backend holds, as in the published formula,
    /// instead of to the prompt.
    pub relative: bool,
    /// Weight of cached tokens.
    pub overlap_weight: f64,
    /// Weight of a low load.
    pub load_weight: f64,
    /// Weight of the success rate of requests.
    pub health_weight: f64,
    /// Overlap below which the scores do not decide.
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
    /// Offloaded prefixes are in the second tier.
    On {
        /// Whether evicted prefixes are in the second tier too.
        evicted_too: bool,
    },
}

/// One entry of `kv_cache_index.event_sources`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixEventSource {
    /// Name of the worker that owns the cache; one of [`crate::Settings::workers`].
    pub backend_name: String,
    /// An `http`, `https`, `ws` or `wss` URL.
    pub endpoint: String,
    /// Delay before the second reconnect.
    pub reconnect_interval: Duration,
    /// Meaning of its hashes.
    pub prefix_hash_kind: PrefixHashKind,
}

/// `kv_cache_index.event_sources[].prefix_hash_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixHashKind {
    /// Hash of the text of a prefix.
    PrefixKey,
    /// Hash of a prefix's blocks.
    SequenceHash,
}
