//! The score of each candidate by the formula of policy `composite`.

use std::sync::Arc;

/// A worker that holds the beginning of a prompt, from streams of whole prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixHolder {
    /// The worker's name.
    pub worker: Arc<str>,
    /// Tokens of the prefix that it has cached.
    pub tokens: u32,
    /// Whether they are in the accelerator's memory; otherwise they are in external storage.
    pub hot: bool,
}

settings::words! {
    /// The measure that is compared with the threshold.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OverlapMeasure {
        /// The part of this prompt that the best worker has cached.
        #[default]
        PromptFraction = "prompt_fraction",
        /// The best worker's tokens relative to the most tokens of any worker, times the weight of
        /// their tier, as in the published formula. It is at least the tier's weight as soon as any
        /// worker holds a token, so a threshold rarely has an effect.
        Relative = "relative",
    }
}

settings::section! {
    /// Section `kv_cache_index.scoring`: weights of the formula, each 0..1. The first three sum to
    /// 1, which the configuration checks.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct ScoringSettings {
        /// Measure of the overlap.
        overlap_measure: OverlapMeasure = "prompt_fraction", restart, simulated;
        /// Weight of cached tokens.
        overlap_weight: f64 = "0.6", restart, simulated;
        /// Weight of a low load.
        load_weight: f64 = "0.3", restart, simulated;
        /// Weight of successful requests.
        health_weight: f64 = "0.1", restart, simulated;
        /// Overlap below which the scores do not decide.
        min_overlap_threshold: f64 = "0.3", restart, simulated;
        /// Weight of prefixes in GPU memory.
        gpu_tier_weight: f64 = "1.0", restart, simulated;
        /// Weight of prefixes in storage.
        storage_tier_weight: f64 = "0.6", restart;
    }
}

/// A candidate as input of the formula.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoringInput {
    /// Its cached tokens, and whether they are in the accelerator's memory.
    pub cached: Option<(u32, bool)>,
    /// Requests it is serving.
    pub in_flight: u32,
    /// Share of its requests of the last minute that it took; 1 without any.
    pub health: f64,
}

/// The result of the formula.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The value compared with the threshold, 0..1.
    pub overlap: f64,
    /// Whether the scores decide; otherwise another rule does.
    pub decides: bool,
    /// One score per candidate, in their order, higher is better, 0..1; all 0 if they do not
    /// decide.
    pub scores: Vec<f64>,
}

impl ScoringSettings {
    /// Computes `overlap_weight * (raw * tier) + load_weight * (1 - load) + health_weight * health`
    /// for each candidate.
    ///
    /// `raw` is a candidate's cached tokens relative to the most of any candidate, `load` its
    /// requests in flight relative to the most of any candidate; 0 of 0 is 0. Source: contract CK57
    /// to CK62.
    ///
    /// ```
    /// use routing::{ScoringInput, ScoringSettings};
    ///
    /// let idle = ScoringInput { cached: None, in_flight: 0, health: 1.0 };
    /// let warm = ScoringInput { cached: Some((512, true)), ..idle };
    /// let scores = ScoringSettings::default().scores(1024, &[warm, idle]);
    /// assert!(scores.decides);
    /// assert!(scores.scores[0] > scores.scores[1]);
    /// ```
    pub fn scores(&self, prompt_tokens: u32, candidates: &[ScoringInput]) -> Scores {
        let cached = || candidates.iter().filter_map(|candidate| candidate.cached);
        let most_tokens = cached().map(|(tokens, _)| tokens).max().unwrap_or(0);
        let overlap_of = |(tokens, hot)| share(tokens, most_tokens) * self.tier_weight(hot);
        let overlap = match self.overlap_measure {
            // Streams may report more tokens than this prompt has.
            OverlapMeasure::PromptFraction => share(most_tokens, prompt_tokens).min(1.0),
            OverlapMeasure::Relative => cached().map(overlap_of).fold(0.0, f64::max),
        };
        let decides = overlap >= self.min_overlap_threshold;
        if !decides {
            return Scores {
                overlap,
                decides,
                scores: vec![0.0; candidates.len()],
            };
        }
        let most_in_flight = candidates
            .iter()
            .map(|candidate| candidate.in_flight)
            .max()
            .unwrap_or(0);
        let score = |candidate: &ScoringInput| {
            self.overlap_weight * candidate.cached.map_or(0.0, overlap_of)
                + self.load_weight * (1.0 - share(candidate.in_flight, most_in_flight))
                + self.health_weight * candidate.health
        };
        Scores {
            overlap,
            decides,
            scores: candidates.iter().map(score).collect(),
        }
    }

    fn tier_weight(&self, hot: bool) -> f64 {
        if hot {
            self.gpu_tier_weight
        } else {
            self.storage_tier_weight
        }
    }
}

/// Returns `part / whole`; 0 for a whole of 0.
fn share(part: u32, whole: u32) -> f64 {
    if whole == 0 {
        0.0
    } else {
        f64::from(part) / f64::from(whole)
    }
}
