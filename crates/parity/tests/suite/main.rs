//! The tracker through its public interface.

mod counters;
mod figures;
mod fixture;
mod states;
mod steady;
