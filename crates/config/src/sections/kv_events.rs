//! Section `kv_events`: event streams, and the budget of the block index.

use std::{path::PathBuf, time::Duration};

use settings::kinds::{int, size};

settings::section! {
    /// Section `kv_events`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct KvEventsSection {
        /// Follow the engines' KV events.
        enabled: bool = "true", live, simulated;
        /// Memory that the block index may use.
        memory_budget: u64 = "512MiB" in size(1 << 20, 1 << 50), restart;
        /// File that keeps the index over a restart.
        snapshot: Option<PathBuf> = "~", later;
        /// How block hashes are computed.
        block_hash: BlockHashKind = "xxh3", restart;
        /// Seed of `xxh3`.
        block_hash_seed: u64 = "1337", restart;
        /// Port of the event stream where an engine does not announce one.
        default_port: u16 = "5557", live;
        /// Only messages whose topic starts with this.
        topic_filter: String = "", live;
        /// Ask for missed events where the engine keeps them.
        replay: bool = "true", live;
        /// Longest message; a longer one ends the connection.
        max_message: usize = "64MiB" in size(1 << 10, 1 << 30), live;
        /// Most batches waiting per stream.
        queue_batches: usize = "65536" in int(1, 1 << 24), live;
        /// Most events taken per second and stream.
        max_events_per_second: u64 = "1000000" in int(1, 1_000_000_000), later;
        /// A stream without a message is called stale after this.
        stale_after: Duration = "60s", live;
        /// The cache of workers without events, predicted from our own decisions.
        prediction: PredictionSection, live;
    }
}

settings::section! {
    /// Section `kv_events.prediction`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct PredictionSection {
        /// A predicted block is forgotten after this.
        ttl: Duration = "120s", restart, simulated;
        /// Most predicted blocks.
        max_blocks: u64 = "1048576" in int(1, 1 << 40), restart;
        /// When there are more, the oldest go until this share is left.
        prune_target_ratio: f64 = "0.8", restart;
    }
}

settings::words! {
    /// `kv_events.block_hash`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum BlockHashKind {
        /// XXH3, with a seed.
        Xxh3 = "xxh3",
        /// FNV-1a.
        Fnv1a = "fnv1a",
    }
    later "keyed";
}
