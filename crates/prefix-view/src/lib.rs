//! The prefix view: which backend has cached how many tokens of which prompt prefix, according to
//! prefix events.
//!
//! A [`PrefixEvent`] names a whole prefix by one hash, so a query is one look-up without a walk; in
//! return the view knows nothing about prefixes that share a beginning. It exists beside the block
//! index, and neither depends on the other. Not here: streams and sockets, the implementation in
//! Redis (`redis-store`), the key of a request's prefix, and the score computed from the holders
//! (`routing`).
//!
//! ```
//! use std::sync::Arc;
//!
//! use kv_blocks::Moment;
//! use prefix_view::{
//!     MemoryPrefixIndex, PrefixEvent, PrefixHashKind, PrefixIndex, QueryCache, ViewSettings,
//! };
//!
//! let (index, cache) = (MemoryPrefixIndex::new(ViewSettings::default()), QueryCache::default());
//! let data = br#"{"prefix_hash": "ea06fc71a5ee6e88", "token_count": 512}"#;
//! let event = PrefixEvent::decode(Some("cache_created"), data, PrefixHashKind::SequenceHash)?;
//! index.record(&Arc::from("vllm-1"), &event, Moment::START)?;
//!
//! // A request with that prefix.
//! let holders = cache.prepare(&index, &event.prefix, Moment::START);
//! assert_eq!((&*holders[0].backend, holders[0].tokens), ("vllm-1", 512));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Promises
//!
//! - A backend is a holder of a prefix only after an event of its own, and for at most one time to
//!   live after the last such event. Queries do not extend that time: they prove nothing about the
//!   engine's cache.
//! - The view has at most `max_entries` prefixes. One more evicts the tenth of them that was
//!   neither recorded nor found by a query for the longest time; expired ones are evicted first.
//! - Queries run concurrently. A query waits only for a writer in the same part of the table, at
//!   most for work on some 1,600 prefixes; an answer without holders allocates nothing. Writers run
//!   one at a time.
//! - At most one query per prefix in 100 ms, however many requests have it ([`QueryCache`]).
//! - A view that cannot answer counts as a view without holders ([`Unavailable`]); no request fails
//!   for it.
//!
//! # Trade-offs
//!
//! - Finding the oldest tenth reads all prefixes while events wait: about 0.1 to 0.2 s at a million
//!   prefixes, once per hundred thousand new ones. Queries go on. In return a query only records
//!   the time.
//! - An event does not name a data-parallel rank: where two ranks of a backend hold a prefix, the
//!   first eviction removes the backend as a holder, so it is never credited with a prefix that it
//!   no longer has.
//! - An answer may be 100 ms old.
//!
//! # Memory
//!
//! Per pair of prefix and backend, measured at a million prefixes: 142 bytes where one backend
//! holds each, 84 where two do, 44 where eight do. A query takes about 0.6 us there. The example
//! `prefix_view_cost` prints these figures; these are of two cores with other work on them.
//!
//! **Invariant**: the time and the events are arguments; nothing here reads a clock, or waits for
//! anything but a lock.

mod event;
mod index;
mod memory;
mod prefix;
mod query_cache;
mod settings;
mod tiers;

pub use self::settings::ViewSettings;
pub use event::{EventKind, PrefixEvent, PrefixEventError};
pub use index::{
    BackendStats, ClearedCounts, Holder, PrefixIndex, RecordOutcome, Unavailable, ViewStats,
};
pub use memory::{MemoryPrefixIndex, PrefixHolders};
pub use prefix::{PrefixHash, PrefixHashError, PrefixHashKind};
pub use query_cache::QueryCache;
pub use tiers::{Effect, Offloading, StorageTier};
