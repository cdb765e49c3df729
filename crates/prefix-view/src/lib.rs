//! The prefix-hash view: which backend has cached how many tokens of which prompt prefix, as far as events of that kind
//! tell.
//!
//! A [`PrefixEvent`] names a whole prefix by one hash, so a question is one look-up and there is nothing to walk; in return
//! the view knows nothing about prefixes that share a beginning. It stands beside the block index and knows nothing of it
//! either. Not here: streams and sockets, the form that lies in Redis (`redis-store`), the key of a request's prefix, and the score made of it (`routing`).
//!
//! ```
//! use std::sync::Arc;
//!
//! use kv_blocks::Moment;
//! use prefix_view::{MemoryPrefixIndex, PrefixEvent, PrefixHashKind, PrefixIndex, PreparedQueries, ViewSettings};
//!
//! let (index, prepared) = (MemoryPrefixIndex::new(ViewSettings::default()), PreparedQueries::default());
//! let data = br#"{"prefix_hash": "ea06fc71a5ee6e88", "token_count": 512}"#;
//! let event = PrefixEvent::decode(Some("cache_created"), data, PrefixHashKind::SequenceHash)?;
//! index.record(&Arc::from("vllm-1"), &event, Moment::START)?;
//!
//! // A request with that prefix.
//! let holders = prepared.prepare(&index, &event.prefix, Moment::START);
//! assert_eq!((&*holders[0].backend, holders[0].tokens), ("vllm-1", 512));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Promises
//!
//! - A backend is named for a prefix only if its own events said so, and for at most one time to live after the last of
//!   them. Queries do not prolong it: what an engine holds is not made true by asking.
//! - At most `max_entries` prefixes are known. One more evicts the tenth of them that was neither recorded nor found by a
//!   query for the longest time; what is over goes first.
//! - Queries run side by side. One waits only for a writer that is in the same part of the table, which is the length of
//!   some 1,600 prefixes; an answer that names nobody allocates nothing. Writers go one by one.
//! - One query per prefix in 100 ms, however many requests have it ([`PreparedQueries`]).
//! - A view that cannot answer is one that knows nobody ([`Unavailable`]); no request fails for it.
//!
//! # Trade-offs
//!
//! - Finding the oldest tenth goes through all prefixes, with events waiting meanwhile: about 0.1 to 0.2 s at a million
//!   prefixes, once per hundred thousand new ones. Queries go on. In return a query only notes the time.
//! - An event says nothing about data-parallel ranks: where two ranks of a backend hold a prefix, the first eviction makes
//!   the backend lose it, so that it is never credited with what it no longer has.
//! - An answer may be 100 ms old.
//!
//! # Memory
//!
//! Per pair of prefix and backend, measured at a million prefixes: 142 bytes where one backend holds each, 84 where two
//! do, 44 where eight do. A query takes about 0.6 us there. The example `prefix_view_cost` prints these
//! figures; these are of two cores with other work on them.
//!
//! **Invariant**: the time and the events come in as values; nothing here reads a clock, or waits for anything but a
//! lock.

mod event;
mod index;
mod memory;
mod prefix;
mod query_cache;
mod settings;
mod tiers;

pub use event::{EventKind, PrefixEvent, PrefixEventError};
pub use index::{
    BackendStats, ClearedCounts, Holder, PrefixIndex, RecordOutcome, Unavailable, ViewStats,
};
pub use memory::{MemoryPrefixIndex, PrefixHolders};
pub use prefix::{PrefixHash, PrefixHashError, PrefixHashKind};
pub use query_cache::QueryCache;
pub use settings::ViewSettings;
pub use tiers::{Effect, Offloading, StorageTier};
