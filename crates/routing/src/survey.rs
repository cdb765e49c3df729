//! The overlap of every candidate with the prompt, looked up before any lock is taken.
//!
//! Candidates that share a namespace share one chain and one lookup.

use std::sync::Arc;

use kv_blocks::{BlockSize, Moment, Namespace, SequenceHash, Target, Tier};
use kv_index::{KvIndex, Overlap, TierBlocks};

use crate::{
    Candidate, DecisionTiming, ExcludeReason, ExcludedTarget, Job, Stopwatch, TierTokens, Tiers,
    admission::Footprint,
    ledger::{Ledger, SequenceBlocks, fingerprint},
};

/// A candidate and its overlap with the prompt.
#[derive(Clone, Debug)]
pub(crate) struct CandidateOverlap<'a> {
    pub(crate) candidate: &'a Candidate,
    /// Leading blocks that it holds and reuses.
    pub(crate) overlap: TierBlocks,
    /// The overlap in tokens.
    pub(crate) warm: TierTokens,
    /// Cached tokens that the engine is expected to report.
    pub(crate) predicted_cached_tokens: u32,
    /// The same from its own announcements only.
    pub(crate) announced_cached_tokens: u32,
    /// Tokens that it would have to compute.
    pub(crate) uncached_tokens: u32,
    /// Whole blocks of the prompt.
    pub(crate) prompt_blocks: u32,
    /// Index of its prompt in [`OverlapSurvey::prompts`].
    pub(crate) prompt: usize,
}

/// The prompt in the blocks of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct NamespacePrompt {
    /// Its blocks; `None` when the prompt is unknown.
    pub(crate) chain: Option<Arc<[SequenceHash]>>,
    /// Its share of the load.
    pub(crate) blocks: SequenceBlocks,
    /// The same in spans, where requests are tested for room.
    pub(crate) footprint: Option<Footprint>,
}

impl CandidateOverlap<'_> {
    /// Credits the target with leading blocks of its unfinished requests: it is about to compute
    /// them, or it uses them and cannot drop them, whatever its announcements say by now.
    pub(crate) fn credit(&mut self, blocks: usize, prompt_tokens: u32) {
        let size = self.candidate.namespace.block_size;
        // At most the blocks of the prompt.
        let blocks = u32::try_from(blocks)
            .unwrap_or(u32::MAX)
            .min(self.prompt_blocks);
        let more = blocks.saturating_sub(self.overlap.total());
        self.overlap.speculative += more;
        self.warm.speculative = self
            .warm
            .speculative
            .saturating_add(more.saturating_mul(size.tokens()));
        self.predicted_cached_tokens = self
            .warm
            .total()
            .min(most_cached_tokens(size, prompt_tokens));
        self.uncached_tokens = prompt_tokens - self.predicted_cached_tokens;
    }

    /// Returns how many of these leading tokens, which another target holds, it lacks and could use.
    pub(crate) fn lacks_of(&self, tokens: u32, prompt_tokens: u32) -> u32 {
        let size = self.candidate.namespace.block_size;
        tokens
            .min(most_cached_tokens(size, prompt_tokens))
            .saturating_sub(self.predicted_cached_tokens)
    }

    /// Counts tokens as read from another target instead of computed: its engine will report them as
    /// cached.
    pub(crate) fn fetch(&mut self, tokens: u32) {
        let tokens = tokens.min(self.uncached_tokens);
        self.predicted_cached_tokens += tokens;
        self.uncached_tokens -= tokens;
    }
}

/// Returns the most tokens that can be cached: an engine always computes the last prompt token, as
/// it needs the logits.
fn most_cached_tokens(size: BlockSize, prompt_tokens: u32) -> u32 {
    size.whole_blocks(prompt_tokens.saturating_sub(1)) * size.tokens()
}

/// All candidates with their overlaps.
#[derive(Clone, Debug)]
pub(crate) struct OverlapSurvey<'a> {
    pub(crate) candidates: Vec<CandidateOverlap<'a>>,
    /// One per namespace.
    pub(crate) prompts: Vec<NamespacePrompt>,
    /// Targets that may not take the request, with the reasons.
    pub(crate) excluded: Vec<ExcludedTarget>,
    pub(crate) timing: SurveyTiming,
}

/// The times of a survey, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SurveyTiming {
    /// The stopwatch at the start of the decision.
    started_us: f64,
    hash_us: f64,
    lookup_us: f64,
}

impl SurveyTiming {
    /// Returns the times of a decision that ends now.
    pub(crate) fn decision(self, stopwatch: &dyn Stopwatch) -> DecisionTiming {
        let Self {
            started_us,
            hash_us,
            lookup_us,
        } = self;
        DecisionTiming {
            hash_us,
            lookup_us,
            decide_us: stopwatch.elapsed_us() - started_us - lookup_us - hash_us,
        }
    }
}

impl OverlapSurvey<'_> {
    /// Excludes targets that are above the busy threshold of a request.
    pub(crate) fn exclude_busy(&mut self, threshold: Option<f64>, ledger: &Ledger) {
        let Some(threshold) = threshold else {
            return;
        };
        self.candidates.retain(|surveyed| {
            let candidate = surveyed.candidate;
            let busy = ledger.is_above(candidate.target, threshold);
            if busy {
                self.excluded
                    .push(ExcludedTarget::of(candidate, ExcludeReason::Busy));
            }
            !busy
        });
    }
}

/// Whether the blocks of active sequences count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockCounting {
    /// As configured.
    Counted,
    /// Not counted: a worker that only computes prompts holds no sequence.
    Ignored,
}

/// Looks up the overlap of every candidate that the job allows.
pub(crate) fn survey<'a>(index: &KvIndex, now: Moment, job: &Job<'a>) -> OverlapSurvey<'a> {
    let started_us = job.stopwatch.elapsed_us();
    let mut groups: Vec<NamespaceGroup<'a>> = Vec::with_capacity(1);
    let mut excluded = job.targets.excluded.to_vec();
    let lookup_start_us = job.stopwatch.elapsed_us();
    let mut candidates = Vec::with_capacity(job.targets.candidates.len());
    for candidate in job.targets.candidates {
        if job.pin.is_some_and(|pin| !pin.allows(candidate.target)) {
            excluded.push(ExcludedTarget::of(candidate, ExcludeReason::NotPinned));
            continue;
        }
        let known = groups
            .iter()
            .position(|group| *group.namespace == candidate.namespace);
        let position = known.unwrap_or_else(|| {
            groups.push(NamespaceGroup::look_up(
                index,
                now,
                job,
                &candidate.namespace,
            ));
            groups.len() - 1
        });
        candidates.push(surveyed(job, candidate, &mut groups[position], position));
    }
    let hash_us = groups.iter().map(|group| group.hash_us).sum();
    OverlapSurvey {
        candidates,
        prompts: groups.into_iter().map(|group| group.prompt).collect(),
        excluded,
        timing: SurveyTiming {
            started_us,
            hash_us,
            lookup_us: job.stopwatch.elapsed_us() - lookup_start_us - hash_us,
        },
    }
}

/// Candidates with one namespace.
struct NamespaceGroup<'a> {
    namespace: &'a Namespace,
    prompt: NamespacePrompt,
    /// Sorted by target.
    overlaps: Vec<Overlap>,
    /// The overlap that is probably needed next.
    next: usize,
    hash_us: f64,
}

impl<'a> NamespaceGroup<'a> {
    fn look_up(index: &KvIndex, now: Moment, job: &Job<'_>, namespace: &'a Namespace) -> Self {
        let started_us = job.stopwatch.elapsed_us();
        let chain = job
            .prompt
            .blocks
            .map(|blocks| blocks.chain(namespace.block_size));
        let hash_us = job.stopwatch.elapsed_us() - started_us;
        let mut overlaps = chain
            .as_deref()
            .filter(|chain| !chain.is_empty())
            .map_or_else(Vec::new, |chain| index.lookup(namespace, chain, now));
        overlaps.sort_unstable_by_key(|overlap| overlap.target);
        let all = u64::from(job.prompt.tokens.div_ceil(namespace.block_size.tokens()));
        let blocks = SequenceBlocks {
            fingerprint: fingerprint(namespace),
            unshared: all.saturating_sub(chain.as_ref().map_or(0, |chain| chain.len() as u64)),
            chain: chain.clone(),
        };
        Self {
            namespace,
            prompt: NamespacePrompt {
                chain,
                blocks,
                footprint: None,
            },
            overlaps,
            next: 0,
            hash_us,
        }
    }

    /// Returns the blocks that a target is credited with, and those that it announced.
    fn overlap(&mut self, target: Target) -> (TierBlocks, TierBlocks) {
        // Callers mostly iterate in the order of targets: the next one follows the last.
        let position = match self.overlaps.get(self.next) {
            Some(next) if next.target == target => Ok(self.next),
            _ => self
                .overlaps
                .binary_search_by_key(&target, |overlap| overlap.target),
        };
        self.next = position.map_or_else(|before| before, |found| found + 1);
        position.map_or_else(
            |_| Default::default(),
            |found| (self.overlaps[found].blocks, self.overlaps[found].announced),
        )
    }
}

fn surveyed<'a>(
    job: &Job<'_>,
    candidate: &'a Candidate,
    group: &mut NamespaceGroup<'_>,
    prompt: usize,
) -> CandidateOverlap<'a> {
    let size = candidate.namespace.block_size;
    let (found, announced) = group.overlap(candidate.target);
    let usable = reused(found, candidate.tiers);
    let announced = reused(announced, candidate.tiers).total();
    let tokens = |blocks: u32| blocks.saturating_mul(size.tokens());
    let warm = TierTokens {
        device: tokens(usable.device),
        host: tokens(usable.host),
        disk: tokens(usable.disk),
        remote: tokens(usable.remote),
        speculative: tokens(usable.speculative),
    };
    let most = most_cached_tokens(size, job.prompt.tokens);
    let predicted_cached_tokens = warm.total().min(most);
    let whole = size.whole_blocks(job.prompt.tokens);
    CandidateOverlap {
        candidate,
        overlap: usable,
        warm,
        predicted_cached_tokens,
        announced_cached_tokens: tokens(announced).min(most),
        uncached_tokens: job.prompt.tokens - predicted_cached_tokens,
        prompt_blocks: whole,
        prompt,
    }
}

/// Returns the blocks in tiers that the engine reuses. The index gives their number, not their
/// position in the run; the others are assumed to be at its end, as engines evict the ends of
/// sequences first.
fn reused(usable: TierBlocks, tiers: Tiers) -> TierBlocks {
    let readable = |tier: Tier, blocks: u32| if tiers.contains(tier) { blocks } else { 0 };
    TierBlocks {
        device: readable(Tier::Device, usable.device),
        host: readable(Tier::Host, usable.host),
        disk: readable(Tier::Disk, usable.disk),
        remote: readable(Tier::Remote, usable.remote),
        speculative: usable.speculative,
    }
}

#[cfg(test)]
mod tests {
    use kv_blocks::{DpRank, PromptIdentity, WorkerId};

    use super::*;
    use crate::{CacheSource, JobPrompt, LmcacheFacts};

    #[test]
    fn blocks_in_a_tier_without_reuse_are_not_credited() {
        let namespace = Namespace {
            model: "m".into(),
            lora: None,
            salt: None,
            block_size: BlockSize::new(16).expect("a block size"),
            identity: PromptIdentity::Tokens,
        };
        let candidate = Candidate {
            target: Target {
                worker: WorkerId(1),
                rank: DpRank(0),
            },
            name: "w1".into(),
            namespace: namespace.clone(),
            weight: 1.0,
            cache: CacheSource::Predicted,
            total_blocks: None,
            tiers: Tiers::default(),
            stream_state: None,
            health: "ready",
            lmcache: LmcacheFacts::default(),
            usage: None,
            fetches: false,
        };
        let job = Job {
            prompt: JobPrompt {
                tokens: 200,
                ..JobPrompt::default()
            },
            ..Job::default()
        };
        let found = |blocks| {
            let announced = TierBlocks {
                device: 3,
                remote: 4,
                ..TierBlocks::default()
            };
            let overlaps = vec![Overlap {
                target: candidate.target,
                blocks,
                announced,
                present: [0; 4],
            }];
            let prompt = NamespacePrompt {
                chain: None,
                blocks: SequenceBlocks::default(),
                footprint: None,
            };
            let mut group = NamespaceGroup {
                namespace: &namespace,
                prompt,
                overlaps,
                next: 0,
                hash_us: 0.0,
            };
            let found = surveyed(&job, &candidate, &mut group, 0);
            (found.predicted_cached_tokens, found.announced_cached_tokens)
        };
        // A target that is not trusted is credited with predicted blocks, whatever it announced.
        assert_eq!(found(TierBlocks::default()), (0, 3 * 16));
        assert_eq!(
            found(TierBlocks {
                speculative: 5,
                ..TierBlocks::default()
            }),
            (5 * 16, 3 * 16)
        );
        assert_eq!(
            found(TierBlocks {
                device: 3,
                remote: 4,
                ..TierBlocks::default()
            }),
            (3 * 16, 3 * 16)
        );
    }
}
