//! Cacheable replies: the checks, the stored form, and the replay as a stream.
//!
//! All replies are stored in one form: the object of a request without a stream. A stream is joined
//! into it ([`StreamObject`]), a whole reply has it already ([`keep_whole`]), and [`replay`] makes
//! a stream of it. This module does not store anything.
//!
//! **Invariant**: a cacheable reply can be read as the whole, good reply to its request; a reply
//! whose pieces could be joined in two ways is not cacheable.

mod check;
mod deltas;
mod join;
mod not_cacheable;
mod partial;
mod pieces;
mod replay;
mod rules;
mod stream_object;

pub use check::keep_whole;
pub use not_cacheable::NotCacheable;
pub use replay::replay;
pub use stream_object::StreamObject;

/// A reply that may be cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheableReply {
    /// The reply as one JSON object.
    pub body: Vec<u8>,
    /// Whether it has its usage: without it, it cannot answer a request that wants the usage.
    pub has_usage: bool,
}
