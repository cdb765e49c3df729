//! The formula.

use std::collections::HashMap;

use super::{OverlapMeasure, ScoringError, ScoringSettings};
use crate::{Holder, StorageTier};

/// A backend that could take the request.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its name.
    pub backend: &'a str,
    /// Requests it is serving.
    pub in_flight: u32,
    /// Requests that ended within the last minute.
    pub recent_requests: u32,
    /// Those of them that succeeded.
    pub recent_successes: u32,
}

/// What the scorer says.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What was compared with the threshold, 0..1.
    pub overlap: f64,
    /// Whether the scores decide; if not, somebody else does.
    pub decides: bool,
    /// One score per candidate, in their order, higher is better, 0..1; all 0 if they do not decide.
    pub scores: Vec<f64>,
}

/// Scores backends: `overlap_weight * (raw * tier) + load_weight * (1 - load) + health_weight * health`.
///
/// `raw` is a backend's cached tokens beside the most that any candidate has, `load` its requests in flight beside the
/// most that any candidate has (0 where nobody has any), `health` its share of successes (1 without a request).
///
/// ```
/// use std::sync::Arc;
///
/// use prefix_view::{Candidate, Holder, Scorer, ScoringSettings, StorageTier};
///
/// let scorer = Scorer::new(ScoringSettings::default()).unwrap();
/// let holders = [Holder { backend: Arc::from("w1"), tokens: 512, tier: StorageTier::GpuHot }];
/// let idle = |backend| Candidate { backend, in_flight: 0, recent_requests: 0, recent_successes: 0 };
/// let verdict = scorer.score(&holders, 1024, &[idle("w1"), idle("w2")]);
/// assert!(verdict.decides);
/// assert!(verdict.scores[0] > verdict.scores[1]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Scorer {
    settings: ScoringSettings,
}

impl Scorer {
    /// A scorer with these settings, or everything that is wrong with them.
    pub fn new(settings: ScoringSettings) -> Result<Self, Vec<ScoringError>> {
        let problems = settings.problems();
        if problems.is_empty() { Ok(Self { settings }) } else { Err(problems) }
    }

    /// Scores `candidates` for a prompt of `prompt_tokens` tokens whose prefix `holders` hold. Holders that are no
    /// candidates count for nothing: they cannot take the request.
    pub fn score(&self, holders: &[Holder], prompt_tokens: u32, candidates: &[Candidate<'_>]) -> Verdict {
        let by_name: HashMap<&str, &Holder> = holders.iter().map(|holder| (&*holder.backend, holder)).collect();
        let held: Vec<Option<&Holder>> =
            candidates.iter().map(|candidate| by_name.get(candidate.backend).copied()).collect();
        let most_tokens = held.iter().flatten().map(|holder| holder.tokens).max().unwrap_or(0);
        let overlap_of = |holder: &Holder| share(holder.tokens, most_tokens) * self.tier_weight(holder.tier);

        let overlap = match self.settings.overlap_measure {
            // Events may know of more tokens than this prompt has.
            OverlapMeasure::PromptFraction => share(most_tokens, prompt_tokens).min(1.0),
            OverlapMeasure::Relative => held.iter().flatten().copied().map(overlap_of).fold(0.0, f64::max),
        };
        let decides = overlap >= self.settings.min_overlap_threshold;
        if !decides {
            return Verdict { overlap, decides, scores: vec![0.0; candidates.len()] };
        }
        let most_in_flight = candidates.iter().map(|candidate| candidate.in_flight).max().unwrap_or(0);
        let scores = candidates
            .iter()
            .zip(held)
            .map(|(candidate, holder)| {
                self.settings.overlap_weight * holder.map_or(0.0, overlap_of)
                    + self.settings.load_weight * (1.0 - share(candidate.in_flight, most_in_flight))
                    + self.settings.health_weight * candidate.health()
            })
            .collect();
        Verdict { overlap, decides, scores }
    }

    fn tier_weight(&self, tier: StorageTier) -> f64 {
        match tier {
            StorageTier::GpuHot => self.settings.gpu_tier_weight,
            StorageTier::StorageWarm => self.settings.storage_tier_weight,
        }
    }
}

impl Candidate<'_> {
    /// A backend that was not tried yet is taken for a good one.
    fn health(&self) -> f64 {
        if self.recent_requests == 0 { 1.0 } else { share(self.recent_successes, self.recent_requests).min(1.0) }
    }
}

/// `part / whole`; nothing of nothing is nothing.
fn share(part: u32, whole: u32) -> f64 {
    if whole == 0 { 0.0 } else { f64::from(part) / f64::from(whole) }
}
