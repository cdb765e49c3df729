//! Section `kv_events`: event streams, and the budget of the block index.

use std::{path::PathBuf, time::Duration};

use kv_blocks::HashScheme;
use routing::PredictionSection;
use settings::{
    AddressRange,
    kinds::{int, seconds, size},
};

settings::section! {
    /// Section `kv_events`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct KvEventsSection {
        /// Follow the engines' KV events.
        enabled: bool = "true", live, simulated;
        /// Memory limit of the block index.
        memory_budget: u64 = "512MiB" in size(1 << 20, 1 << 50), restart;
        /// The index in a file, for the next start.
        snapshot: IndexSnapshotSection, restart;
        /// Hash function of blocks.
        block_hash: BlockHashKind = "xxh3", restart;
        /// Seed of `xxh3`.
        block_hash_seed: u64 = "1337", restart;
        /// Port of the event stream of an engine that announces no endpoint.
        default_port: u16 = "5557", live;
        /// Prefix of the accepted topics. Empty: all.
        topic_filter: String = "", live;
        /// Request missed events from engines that store them.
        replay: bool = "true", live;
        /// Largest message. A larger one closes the connection.
        max_message: usize = "64MiB" in size(1 << 10, 1 << 30), live;
        /// Maximum number of queued batches per stream.
        queue_batches: usize = "65536" in int(1, 1 << 24), live;
        /// Maximum number of events per second and stream.
        max_events_per_second: u64 = "1000000" in int(1, 1_000_000_000), later;
        /// Time without a message after which a stream is reported as stale.
        stale_after: Duration = "60s", live;
        /// Addresses besides the workers' own from which engines may connect to a bound socket
        /// (`workers[].kv_events.bind`): those of a NAT gateway, or of pods behind a worker's
        /// address. An engine on this machine may use any of the machine's addresses. Each may
        /// publish for every worker of the socket.
        allowed_peers: Vec<AddressRange> = "[]", live;
        /// Predicted cache content of workers without events, from our own decisions.
        prediction: PredictionSection, live;
    }
}

settings::section! {
    /// Section `kv_events.snapshot`: the block index in a file.
    #[derive(Clone, Debug, PartialEq)]
    pub struct IndexSnapshotSection {
        /// The file, which is loaded at the start and replaced at each `interval` and at the end. It
        /// contains cache salts. Unset: a restart begins with an empty index.
        path: Option<PathBuf> = "~", restart;
        /// Time between two saves.
        interval: Duration = "60s" in seconds(1, 86_400), restart;
    }
}

impl KvEventsSection {
    /// Returns the hash scheme of blocks.
    pub fn hash_scheme(&self) -> HashScheme {
        match self.block_hash {
            BlockHashKind::Xxh3 => HashScheme::Xxh3 {
                seed: self.block_hash_seed,
            },
            BlockHashKind::Fnv1a => HashScheme::Fnv1a,
        }
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
