//! Replies that are kept to answer later requests: which may be, in what form, and how one becomes a stream again.
//!
//! One form is kept for all: the object that a request without a stream would have got. A stream is put together into it
//! ([`StreamObject`]), a whole reply is it already ([`keep_whole`]), and [`replay`] makes a stream of it. Where and for how
//! long it is kept is no matter of this module.
//!
//! **Invariant**: what is kept can be read as the whole, good reply to its request; where pieces could be put together in
//! two ways, nothing is kept.

mod check;
mod deltas;
mod join;
mod not_cacheable;
mod pieces;
mod replay;
mod rules;
mod stream_object;

pub use check::keep_whole;
pub use not_cacheable::NotCacheable;
pub use replay::replay;
pub use stream_object::StreamObject;

/// A reply that may be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheableReply {
    /// The reply as one JSON object.
    pub body: Vec<u8>,
    /// Whether it says what was counted: without that it answers nobody who asks for it.
    pub has_usage: bool,
}
