//! The memory of the concurrent structure: lines of 64 bytes in permanent chunks, and the allocator
//! of free lines.

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of lines fit 32 bits"
)]

#[cfg(not(any(loom, shuttle)))]
mod chunks;
#[cfg(any(loom, shuttle))]
#[path = "loom_model.rs"]
mod chunks;
mod extents;

pub(crate) use chunks::{LINE_BYTES, LINE_WORDS, LineChunks, prefetch};
pub(crate) use extents::Extents;
