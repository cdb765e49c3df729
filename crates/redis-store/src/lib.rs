//! Storage in Redis: one pool of connections, and the prefix view that routers share through it.
//!
//! [`RedisPool`] opens connections, limits the length and time of the server's answers, and detects
//! when the server goes down and comes back. All stores share one pool; each has its own limit of
//! connections. [`RedisValues`] is the interface for a cache: values with an expiry under keys with
//! a common prefix. [`RedisPrefixIndex`] is the prefix view (`prefix-view`) on top of the pool:
//! events that this process receives go into its memory as always and are written to Redis
//! asynchronously; the holders of a prefix are read from Redis, or from that memory when Redis does
//! not answer in time.
//!
//! Not here: the meaning of events and the computation of a score (`prefix-view`, `routing`), and
//! the choice and time of queries (`fleet`).
//!
//! **Invariant**: no behaviour of Redis makes a request fail, or makes one wait longer than
//! [`LOOKUP_BUDGET`].
//! **Invariant**: an answer of Redis counts only for configured backends.
//! **Invariant**: recording events never waits for Redis.

mod connection;
mod fallback;
mod fault;
mod monitor;
mod page;
mod pool;
mod prefixes;
mod read_limit;
mod sentinels;
mod state;
mod telemetry;
mod values;

pub use fallback::FallbackRegistration;
pub use fault::{FaultKind, RedisFault};
pub use pool::{Operation, RedisPool};
pub use prefixes::{KEY_PREFIX, LOOKUP_BUDGET, RedisPrefixIndex, SharedView};
pub use values::{RedisValue, RedisValues};
