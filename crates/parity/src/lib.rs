//! What was predicted beside what came of it, and what follows from the difference.
//!
//! Every judged request leaves a [`Sample`] with its target; a [`Book`] keeps a window of them. Where a tenth of the
//! replies say how many prompt tokens were cached, the samples are compared one by one; where they do not, sums are
//! compared with the growth of the engine's own counters ([`EngineCounters`]). A target whose predictions drift is
//! reported, one that drifts far is known by our own decisions only, until what its events say has been right again for
//! a while: see [`State`] for when each follows from which.
//!
//! Nothing here reads a clock or talks to anybody: samples and counters come in as values, [`Change`]s go out as values
//! for the caller to act on. Which requests are fit to be judged is the caller's to say, too.
//!
//! **Invariant**: a sample decides at most one state; after a change of state, a restart of the engine or a change of what
//! predictions go by ([`Basis`]) earlier ones stay in the report and decide nothing more.

mod comparison;
mod intervals;
mod sample;
mod settings;
mod spans;
mod state;
mod summary;
mod target_tracker;
mod tracker;
mod window;

pub use intervals::EngineCounters;
pub use sample::{Basis, IncomparableRequest, PredictionSample, ReplyKind};
pub use settings::{MOST_SAMPLES, ParitySettings};
pub use state::{ParityChange, ParityState};
pub use summary::{ActualSource, ParityReport, Summary};
pub use tracker::{ParityOutcome, ParityTracker};
