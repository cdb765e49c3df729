//! From who holds what to one number per backend.

mod scorer;
mod settings;

pub use scorer::{Candidate, Scorer, Verdict};
pub use settings::{OverlapMeasure, ScoringError, ScoringSettings};
