//! `lmcache_aware`: routes by an LMCache controller's figures: the match with this prompt, or the
//! cache size.
//!
//! If any worker holds the beginning of the prompt, the most matched tokens win, and equal ones are
//! decided by the fewest requests in flight. Otherwise a score of two parts decides:
//! `cache_weight * keys + (1 - cache_weight) * (1 - load)`, where `keys` is the number of chunks a
//! worker holds relative to the most of any candidate, and `load` its requests in flight relative to the most of
//! any candidate. Where the controller knows no candidate, and at overlap weight 0, the configured
//! fallback decides. Source: contract V29, V30.
//!
//! Cost: 1 less the share of the largest match, or 1 less the score. Terms: `matched_tokens`,
//! `keys`, `in_flight`, `by_prefix` (1 where the match decides).

use settings::word;

use super::{
    cost::{CandidateCost, CostUnit, Terms},
    rule::{PolicyCandidate, PolicyDefinition, PolicyFact, PolicyInput, PolicyRule},
};

pub(super) const DEFINITION: PolicyDefinition = PolicyDefinition {
    name: word("lmcache_aware"),
    facts: &[PolicyFact::Lmcache],
    rule: |settings| Box::new(LmcacheAware::new(settings.lmcache.cache_weight)),
};

/// The label ([`crate::Decision::label`]) of a request routed by its longest prefix match.
pub const LMCACHE_PREFIX: &str = "lmcache_prefix";
/// The label of a request routed by cache size.
const BY_OCCUPANCY: &str = "lmcache_occupancy";

#[derive(Debug)]
pub(super) struct LmcacheAware {
    cache_weight: f64,
}

impl LmcacheAware {
    pub(super) fn new(cache_weight: f64) -> Self {
        Self {
            cache_weight: if cache_weight.is_finite() {
                cache_weight.clamp(0.0, 1.0)
            } else {
                1.0
            },
        }
    }
}

impl PolicyRule for LmcacheAware {
    fn unit(&self) -> CostUnit {
        CostUnit::Score
    }

    /// Returns whether the controller has figures for any candidate.
    fn decides(&self, input: &PolicyInput<'_>) -> bool {
        let has_answer =
            |contender: &PolicyCandidate<'_>| keys(contender).is_some() || matched(contender) > 0;
        input.overlap_weight > 0.0 && input.candidates.iter().any(has_answer)
    }

    fn price(&self, input: &PolicyInput<'_>) -> Vec<CandidateCost> {
        let most = |of: fn(&PolicyCandidate<'_>) -> u64| {
            input.candidates.iter().map(of).max().unwrap_or(0)
        };
        let longest = most(|contender| matched(contender).into());
        let (most_keys, most_load) = (
            most(|contender| keys(contender).unwrap_or(0)),
            most(in_flight),
        );
        let by_prefix = longest > 0;
        let price = |contender: &PolicyCandidate<'_>| {
            let (matched, keys, load) = (
                matched(contender),
                keys(contender).unwrap_or(0),
                in_flight(contender),
            );
            let score = if by_prefix {
                share(matched.into(), longest)
            } else {
                self.cache_weight * share(keys, most_keys)
                    + (1.0 - self.cache_weight) * (1.0 - share(load, most_load))
            };
            CandidateCost {
                tie: load,
                label: Some(if by_prefix {
                    LMCACHE_PREFIX
                } else {
                    BY_OCCUPANCY
                }),
                terms: Terms::new(
                    &["matched_tokens", "keys", "in_flight", "by_prefix"],
                    [
                        f64::from(matched),
                        keys as f64,
                        load as f64,
                        f64::from(u8::from(by_prefix)),
                    ],
                ),
                ..CandidateCost::of(1.0 - score)
            }
        };
        input.candidates.iter().map(price).collect()
    }
}

fn matched(contender: &PolicyCandidate<'_>) -> u32 {
    contender
        .overlap
        .candidate
        .lmcache
        .matched_tokens
        .unwrap_or(0)
}

fn keys(contender: &PolicyCandidate<'_>) -> Option<u64> {
    contender.overlap.candidate.lmcache.keys
}

fn in_flight(contender: &PolicyCandidate<'_>) -> u64 {
    contender.state.load.in_flight.into()
}

/// Returns `part / whole`; 0 for a whole of 0.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}
