//! Section `kv_cache_index`: the view of prefixes.

use std::{num::NonZeroUsize, time::Duration};

use ::routing::ScoringSettings;
use prefix_view::{Offloading, PrefixHashKind};
use settings::{
    ValueKind,
    kinds::{int, milliseconds, seconds},
};

use super::RedisSection;

settings::section! {
    /// Section `kv_cache_index`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct KvCacheIndexSection {
        /// Follow `event_sources` and maintain the prefix view, which `composite` and `continuum`
        /// use. The block index (`kv_events`) does not need it.
        enabled: bool = "false", restart;
        /// Storage of the prefix view. `redis`: the server of `response_cache.redis`, which routers
        /// can share.
        backend: IndexBackend = "memory", restart;
        /// Maximum number of prefixes. Above it the oldest tenth is evicted.
        max_entries: NonZeroUsize = "100000" in int(100, 10_000_000), restart;
        /// Time without a confirming event after which a prefix is removed.
        entry_ttl "entry_ttl_seconds": Duration = "600" in seconds(1, 86_400), restart;
        /// Weights of the score of `composite` and `continuum`. The weights of overlap, load and
        /// health sum to 1.
        scoring: ScoringSettings, live;
        /// Treatment of prefixes outside GPU memory.
        offloading "storage_offloading": Offloading, restart;
        /// Event streams that name whole prefixes.
        event_sources: Vec<PrefixEventSource> = "[]", restart;
    }
    with {
        /// Server of `backend: redis`.
        pub redis: Option<RedisSection>;
    }
}

settings::section! {
    /// One entry of `kv_cache_index.event_sources`.
    #[derive(Clone, Debug, PartialEq)]
    pub optional struct PrefixEventSource {
        /// Worker whose cache the stream describes. Required.
        backend_name: String = "~", restart;
        /// URL of the stream, as in `http://10.0.0.1:8000/v1/kv_events`. Required.
        endpoint: String = "~" in ValueKind::Stream(&["http", "https", "ws", "wss"]), restart;
        /// Pause before the second reconnect. The first pause is 1 s; later ones double, up to one
        /// minute.
        reconnect_interval "reconnect_interval_ms": Duration = "5000"
            in milliseconds(1, 60_000), restart;
        /// Hashes in the stream. `prefix_key`: of the prefix's text. `sequence_hash`: of its
        /// blocks, an event for each, as another warmroute with equal `kv_events.block_hash` and
        /// `block_hash_seed` sends them.
        prefix_hash_kind: PrefixHashKind = "prefix_key", restart;
    }
}

settings::words! {
    /// Storage of the view.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum IndexBackend {
        /// Memory of this process.
        Memory = "memory",
        /// A Redis server, where routers share it.
        Redis = "redis",
    }
}
