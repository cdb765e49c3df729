//! Parameters and figures of a trial.

use std::{fmt, ops::AddAssign};

use super::{random::SplitMix64, step::OracleStep, world::Extent};

/// Parameters of an index and its world.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) extent: Extent,
    /// Memory budget in bytes, if it may not suffice: then the index may hold less than the truth,
    /// but never more.
    pub(crate) tight: Option<u64>,
}

impl Setup {
    /// A setup with enough memory for all blocks.
    pub(crate) fn ample(seed: u64) -> Self {
        Self {
            seed,
            extent: Extent::generate(&mut SplitMix64::new(seed)),
            tight: None,
        }
    }

    /// A setup with less memory than its world needs, or hardly enough.
    pub(crate) fn tight(seed: u64) -> Self {
        let dice = &mut SplitMix64::new(seed);
        let extent = Extent {
            targets: dice.within(1, 12),
            spaces: 4,
            prompts: 200,
            blocks: 100,
        };
        Self {
            seed,
            extent,
            tight: Some(64 << 10 << dice.below(7)),
        }
    }

    /// Draws the steps of this setup.
    pub(crate) fn steps(&self, count: usize) -> Vec<OracleStep> {
        let mut dice = SplitMix64::new(!self.seed);
        (0..count)
            .map(|_| OracleStep::generate(&mut dice))
            .collect()
    }
}

/// Figures of a trial.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrialCounts {
    /// Lookups compared.
    pub(crate) queries: u64,
    /// Sum of the targets credited in them.
    pub(crate) credited: u64,
    /// Blocks stored, including those behind a gap.
    pub(crate) stored: u64,
    /// Blocks that arrived before their parent.
    pub(crate) orphans: u64,
    pub(crate) removed: u64,
    /// Trials, or parts of them, that reached the memory budget.
    pub(crate) shed: u64,
}

impl AddAssign for TrialCounts {
    fn add_assign(&mut self, other: Self) {
        self.queries += other.queries;
        self.credited += other.credited;
        self.stored += other.stored;
        self.orphans += other.orphans;
        self.removed += other.removed;
        self.shed += other.shed;
    }
}

/// A difference, and the step that showed it.
#[derive(Clone, Debug)]
pub(crate) struct OracleMismatch {
    pub(crate) at: String,
    pub(crate) what: String,
}

impl OracleMismatch {
    /// The kind of difference, in one word.
    pub(crate) fn kind(&self) -> &str {
        self.what.split_whitespace().next().unwrap_or_default()
    }
}

impl fmt::Display for OracleMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what)
    }
}
