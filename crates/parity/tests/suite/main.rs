//! The tracker through its public interface.

mod counters;
mod figures;
mod journal;
mod states;
mod steady;
