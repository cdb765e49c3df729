//! Runs: stretches of consecutive blocks of one chain, shared by all who hold them.

#![allow(
    clippy::cast_possible_truncation,
    reason = "fields are cut out of words, and numbers of blocks fit 32 bits"
)]

mod area;
mod head;
mod holders;

pub(crate) use area::{EXPECTED, Span, Title};
pub(crate) use head::{Head, Heads, MAX_RUNS, MAX_SLOTS, NO_RUN, RUN_BITS, WHOLE, unpack_part};
pub(crate) use holders::{Expected, Holders, each_bit};
