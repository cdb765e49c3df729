//! Weights, and what they may be.

/// How far the sum of the three weights may be from 1.
const TOLERANCE: f64 = 1e-6;

/// What is compared with the threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverlapMeasure {
    /// The part of this prompt that the best backend has cached.
    #[default]
    PromptFraction,
    /// The best backend's tokens beside the most that any has, times the weight of their tier, as in the published
    /// formula. It is at least the tier's weight as soon as anybody holds anything, so a threshold hardly bites.
    Relative,
}

/// Settings of the scorer (`kv_cache_index.scoring`), each 0..1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoringSettings {
    /// What is compared with `min_overlap_threshold`.
    pub overlap_measure: OverlapMeasure,
    /// Weight of what a backend has cached.
    pub overlap_weight: f64,
    /// Weight of how little it has to do.
    pub load_weight: f64,
    /// Weight of how often it succeeded of late.
    pub health_weight: f64,
    /// From here on the scorer decides.
    pub min_overlap_threshold: f64,
    /// What a token counts that is in the accelerator's memory.
    pub gpu_tier_weight: f64,
    /// What a token counts that is in external storage.
    pub storage_tier_weight: f64,
}

impl Default for ScoringSettings {
    fn default() -> Self {
        Self {
            overlap_measure: OverlapMeasure::default(),
            overlap_weight: 0.6,
            load_weight: 0.3,
            health_weight: 0.1,
            min_overlap_threshold: 0.3,
            gpu_tier_weight: 1.0,
            storage_tier_weight: 0.6,
        }
    }
}

/// Why settings cannot be scored with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScoringError {
    /// A number is no share.
    #[error("kv_cache_index.scoring.{key} is {value}: expected 0 to 1")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        value: f64,
    },
    /// The three weights do not make a whole.
    #[error(
        "kv_cache_index.scoring: overlap_weight + load_weight + health_weight is {sum:.6}: expected 1.0; raise or lower one of them"
    )]
    Sum {
        /// What they make.
        sum: f64,
    },
}

impl ScoringSettings {
    /// Every problem there is; empty: none.
    pub(super) fn problems(&self) -> Vec<ScoringError> {
        let shares = [
            ("overlap_weight", self.overlap_weight),
            ("load_weight", self.load_weight),
            ("health_weight", self.health_weight),
            ("min_overlap_threshold", self.min_overlap_threshold),
            ("gpu_tier_weight", self.gpu_tier_weight),
            ("storage_tier_weight", self.storage_tier_weight),
        ];
        let mut problems: Vec<_> = shares
            .into_iter()
            // What is no number is in no range.
            .filter(|(_, value)| !(0.0..=1.0).contains(value))
            .map(|(key, value)| ScoringError::OutOfRange { key, value })
            .collect();
        let sum = self.overlap_weight + self.load_weight + self.health_weight;
        if (sum - 1.0).abs() > TOLERANCE {
            problems.push(ScoringError::Sum { sum });
        }
        problems
    }
}
