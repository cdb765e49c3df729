//! What lies in Redis: one pool of connections, and the view of prefixes that routers share through it.
//!
//! [`RedisPool`] opens connections, bounds what a server may answer and how long it may take, and notices when it is away
//! and when it is back. It is one for all who use it, each with connections of its own number. [`RedisValues`] is what a cache
//! needs of it: values with an end under keys that begin alike. [`RedisPrefixIndex`] is the view (`prefix-view`) on top of it: what this process hears is kept in
//! memory as ever and written to Redis behind its back, and who holds a prefix is asked of Redis, or of that memory where
//! Redis does not answer in time.
//!
//! Not here: what events mean and what a score is made of (`prefix-view`, `routing`), and who is asked when (`fleet`).
//!
//! **Invariant**: nothing that Redis does makes a request fail, or makes one wait longer than [`LOOKUP_BUDGET`].
//! **Invariant**: what Redis answers is believed for no other backend than those that are configured.
//! **Invariant**: whoever takes events in never waits for Redis.

mod connection;
mod fallback;
mod fault;
mod monitor;
mod page;
mod pool;
mod prefixes;
mod read_limit;
mod state;
mod telemetry;
mod values;

pub use fallback::FallbackRegistration;
pub use fault::{FaultKind, RedisFault};
pub use pool::{Operation, RedisPool};
pub use prefixes::{KEY_PREFIX, LOOKUP_BUDGET, RedisPrefixIndex, SharedView};
pub use values::{RedisValue, RedisValues};
