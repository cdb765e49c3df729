//! Section `kv_cache_index`: the view of prefixes.

use std::{num::NonZeroUsize, time::Duration};

use ::routing::ScoringSettings;
use settings::{
    CheckedValue, Setting, ValueKind,
    kinds::{int, milliseconds, seconds},
};

use super::RedisSection;

settings::section! {
    /// Section `kv_cache_index`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct KvCacheIndexSection {
        /// Follow `event_sources` into the view of prefixes, which `composite` and `continuum` go
        /// by. The block index (`kv_events`) does not need it.
        enabled: bool = "false", restart;
        /// Where the view is kept; `redis` = in the server of `response_cache.redis`, where routers
        /// share it.
        backend: IndexBackend = "memory", restart;
        /// Most prefixes; above, the oldest tenth goes.
        max_entries: NonZeroUsize = "100000" in int(100, 10_000_000), restart;
        /// A prefix that no event confirmed for this long is forgotten.
        entry_ttl "entry_ttl_seconds": Duration = "600" in seconds(1, 86_400), restart;
        /// How backends are scored, by policies `composite` and `continuum`; the three weights of
        /// overlap, load and health make 1.
        scoring: ScoringSettings, live;
        /// Whether prefixes outside GPU memory count.
        offloading "storage_offloading": Offloading, restart;
        /// Streams that name whole prefixes.
        event_sources: Vec<PrefixEventSource> = "[]", restart;
    }
    with {
        /// Server of `backend: redis`.
        pub redis: Option<RedisSection>;
    }
}

settings::section! {
    /// Section `kv_cache_index.storage_offloading`.
    #[derive(Debug)]
    struct OffloadingSection {
        /// Keep what was offloaded as the second tier.
        enabled: bool = "false", restart;
        /// What was evicted is in the second tier too; false = it is gone.
        treat_eviction_as_offload: bool = "true", restart;
    }
}

settings::section! {
    /// One entry of `kv_cache_index.event_sources`.
    #[derive(Clone, Debug, PartialEq)]
    pub optional struct PrefixEventSource {
        /// The worker whose cache the stream speaks of. Required.
        backend_name: String = "~", restart;
        /// Where the stream is, as in `http://10.0.0.1:8000/v1/kv_events`. Required.
        endpoint: String = "~" in ValueKind::Stream(&["http", "https", "ws", "wss"]), restart;
        /// The second wait before a stream is connected to again; the first is a second, later ones
        /// double to a minute.
        reconnect_interval "reconnect_interval_ms": Duration = "5000"
            in milliseconds(1, 60_000), restart;
        /// What the stream's hashes are: of the text of a prefix, or of its blocks, as another
        /// warmroute has them.
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

settings::words! {
    /// `kv_cache_index.event_sources[].prefix_hash_kind`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PrefixHashKind {
        /// Hash of the text of a prefix.
        PrefixKey = "prefix_key",
        /// Hash of a prefix's blocks.
        SequenceHash = "sequence_hash",
    }
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

impl Setting for Offloading {
    const KIND: ValueKind = OffloadingSection::KIND;

    fn read(section: &CheckedValue) -> Option<Self> {
        let section = OffloadingSection::read(section)?;
        Some(if section.enabled {
            Self::On {
                evicted_too: section.treat_eviction_as_offload,
            }
        } else {
            Self::Off
        })
    }
}
