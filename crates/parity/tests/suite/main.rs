//! The book, as its callers use it.

mod counters;
mod figures;
mod journal;
mod states;
mod steady;
