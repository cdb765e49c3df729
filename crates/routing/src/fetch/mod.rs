//! Reads of blocks from another worker: a third way to get the leading blocks of a prompt, beside a
//! target's own cache and their computation.
//!
//! A candidate that lacks blocks may read them from one of the two others that hold most of the prompt.
//! The router moves nothing itself: it names the source to the engine, which reads the blocks or, if
//! it cannot, computes them. What a read costs is learned from first tokens.
//!
//! | module | purpose |
//! | --- | --- |
//! | `sources` | the candidates that hold most of a prompt |
//! | `offer` | what each candidate could read, and what that would cost and displace |
//! | `table` | the reads of open requests, and how they ended |
//! | `rates` | the learned time of reads, and how often they bring nothing |
//!
//! **Invariant**: a read is an offer of the same target that would compute the blocks, so a source
//! that fails costs a request time and never its reply.

mod offer;
mod rates;
mod sources;
mod table;

use std::sync::Arc;

use kv_blocks::Target;

pub use self::table::FetchCounts;
pub(crate) use self::table::{FetchTable, OpenFetch};

/// Blocks that a candidate could read from another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FetchOption {
    pub(crate) source: Target,
    /// Tokens that it would read: those that the source holds beyond the candidate's own.
    pub(crate) tokens: u32,
    /// Expected time of the read.
    pub(crate) ms: f64,
    /// Probability that it brings nothing.
    pub(crate) missed: f64,
    /// Tokens of blocks in use there that would have to make room.
    pub(crate) displaced_tokens: f64,
}

/// A read of blocks from another worker instead of their computation.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchNote {
    /// The target that holds them.
    pub source: Target,
    /// Its worker's name.
    pub name: Arc<str>,
    /// Tokens that are read.
    pub tokens: u32,
    /// The expected time of it, in milliseconds.
    pub ms: f64,
}
