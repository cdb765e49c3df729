//! Compares predicted with actual cached tokens and decides whether a target's events are trusted.
//!
//! Every comparable request leaves a [`PredictionSample`] with its target; a [`ParityTracker`]
//! keeps a window of them. Where a tenth of the replies report their cached prompt tokens, the
//! samples are compared one by one; otherwise sums are compared with the growth of the engine's own
//! counters ([`EngineCounters`]). A target whose predictions drift is reported. A target whose
//! predictions drift far is credited by our own decisions only, until its events have been right
//! again for a while: [`ParityState`] lists the transitions.
//!
//! This crate reads no clock and does no IO: samples and counters are arguments, [`ParityChange`]s
//! are results that the caller acts on. The caller also decides which requests are comparable.
//!
//! **Invariant**: a sample decides at most one state; after a change of state, a restart of the
//! engine or a change of the [`Basis`] of predictions, earlier samples stay in the report and
//! decide nothing more.

mod comparison;
mod intervals;
mod sample;
mod spans;
mod state;
mod summary;
mod target_tracker;
mod thresholds;
mod tracker;
mod window;

pub use intervals::EngineCounters;
pub use sample::{Basis, IncomparableRequest, PredictionSample, ReplyKind};
pub use state::{ParityChange, ParityState, ParityVerdict};
pub use summary::Summary;
pub use thresholds::{MOST_SAMPLES, ParitySettings};
pub use tracker::{ParityOutcome, ParityTracker};
