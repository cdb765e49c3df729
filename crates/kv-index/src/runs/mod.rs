//! Runs: stretches of consecutive blocks of one chain, shared by all their holders.

#![allow(
    clippy::cast_possible_truncation,
    reason = "fields are cut out of words, and numbers of blocks fit 32 bits"
)]

mod area;
mod block_range;
mod head;
mod heads;
mod holders;

pub(crate) use area::{AreaHeader, EXPECTED, TierSpan, tier_number};
pub(crate) use block_range::BlockRange;
pub(crate) use head::{MAX_RUNS, MAX_SLOTS, NO_RUN, RUN_BITS, RunHead, WHOLE, unpack_part};
pub(crate) use heads::RunHeads;
pub(crate) use holders::{Holders, SpeculativeBlocks, each_bit};
