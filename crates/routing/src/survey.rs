//! Who is warm: what the index says of each candidate, before anything is locked.
//!
//! Candidates that share a namespace share one chain and one lookup.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    sync::Arc,
};

use kv_blocks::{Moment, Namespace, SequenceHash, Target, Tier};
use kv_index::{KvIndex, Overlap, TierBlocks};

use crate::{Candidate, Job, Tiers, WarmTokens, ledger::SequenceBlocks};

/// A candidate and what it holds of the prompt.
#[derive(Clone, Debug)]
pub(crate) struct Surveyed<'a> {
    pub(crate) candidate: &'a Candidate,
    /// Leading blocks it holds and reuses.
    pub(crate) held: TierBlocks,
    /// The same in tokens.
    pub(crate) warm: WarmTokens,
    /// What the engine would report as cached.
    pub(crate) predicted_cached_tokens: u32,
    /// What it would have to compute.
    pub(crate) uncached_tokens: u32,
    /// Whole blocks of the prompt.
    pub(crate) prompt_blocks: u32,
    /// The prompt's blocks; `None` when nothing is known of it.
    pub(crate) chain: Option<Arc<[SequenceHash]>>,
    /// What the prompt would add to its load.
    pub(crate) blocks: SequenceBlocks,
}

/// All candidates with what they hold.
#[derive(Debug)]
pub(crate) struct Survey<'a> {
    pub(crate) contenders: Vec<Surveyed<'a>>,
    /// Microseconds spent hashing blocks.
    pub(crate) hash_us: f64,
}

/// Asks the index about every candidate.
pub(crate) fn survey<'a>(
    index: &KvIndex,
    now: Moment,
    job: &Job<'_>,
    candidates: impl Iterator<Item = &'a Candidate>,
) -> Survey<'a> {
    let mut groups: Vec<Group<'a>> = Vec::with_capacity(1);
    let contenders = candidates
        .map(|candidate| {
            let known = groups.iter().position(|group| *group.namespace == candidate.namespace);
            let position = known.unwrap_or_else(|| {
                groups.push(Group::ask(index, now, job, &candidate.namespace));
                groups.len() - 1
            });
            surveyed(job, candidate, &groups[position])
        })
        .collect();
    Survey { contenders, hash_us: groups.iter().map(|group| group.hash_us).sum() }
}

/// Candidates with one namespace.
struct Group<'a> {
    namespace: &'a Namespace,
    fingerprint: u64,
    chain: Option<Arc<[SequenceHash]>>,
    /// Sorted by target.
    overlaps: Vec<Overlap>,
    hash_us: f64,
}

impl<'a> Group<'a> {
    fn ask(index: &KvIndex, now: Moment, job: &Job<'_>, namespace: &'a Namespace) -> Self {
        let started_us = job.stopwatch.elapsed_us();
        let chain = job.blocks.map(|blocks| blocks.chain(namespace.block_size));
        let hash_us = job.stopwatch.elapsed_us() - started_us;
        let mut overlaps = chain
            .as_deref()
            .filter(|chain| !chain.is_empty())
            .map_or_else(Vec::new, |chain| index.lookup(namespace, chain, now));
        overlaps.sort_unstable_by_key(|overlap| overlap.target);
        // Only tells namespaces apart inside this process, so any fixed hash will do.
        let mut hasher = DefaultHasher::new();
        namespace.hash(&mut hasher);
        Self { namespace, fingerprint: hasher.finish(), chain, overlaps, hash_us }
    }

    fn held(&self, target: Target) -> TierBlocks {
        self.overlaps
            .binary_search_by_key(&target, |overlap| overlap.target)
            .map_or_else(|_| TierBlocks::default(), |found| self.overlaps[found].blocks)
    }
}

fn surveyed<'a>(job: &Job<'_>, candidate: &'a Candidate, group: &Group<'_>) -> Surveyed<'a> {
    let size = candidate.namespace.block_size;
    let held = reused(group.held(candidate.target), candidate.tiers);
    let tokens = |blocks: u32| blocks.saturating_mul(size.tokens());
    let warm = WarmTokens {
        device: tokens(held.device),
        host: tokens(held.host),
        disk: tokens(held.disk),
        remote: tokens(held.remote),
        speculative: tokens(held.speculative),
    };
    // An engine always computes the last prompt token: it needs the logits.
    let most = size.whole_blocks(job.prompt_tokens.saturating_sub(1)) * size.tokens();
    let predicted_cached_tokens = warm.total().min(most);
    let whole = size.whole_blocks(job.prompt_tokens);
    let all = u64::from(job.prompt_tokens.div_ceil(size.tokens()));
    let chained = group.chain.as_ref().map_or(0, |chain| chain.len() as u64);
    Surveyed {
        candidate,
        held,
        warm,
        predicted_cached_tokens,
        uncached_tokens: job.prompt_tokens - predicted_cached_tokens,
        prompt_blocks: whole,
        chain: group.chain.clone(),
        blocks: SequenceBlocks {
            chain: group.chain.clone(),
            fingerprint: group.fingerprint,
            unshared: all.saturating_sub(chained),
        },
    }
}

/// Blocks in tiers that the engine does not reuse from are no help. The index tells how many there are, not where in
/// the run: they are taken to be at its end, as engines push out the ends of sequences first.
fn reused(held: TierBlocks, tiers: Tiers) -> TierBlocks {
    let kept = |tier: Tier, blocks: u32| if tiers.contains(tier) { blocks } else { 0 };
    TierBlocks {
        device: kept(Tier::Device, held.device),
        host: kept(Tier::Host, held.host),
        disk: kept(Tier::Disk, held.disk),
        remote: kept(Tier::Remote, held.remote),
        speculative: held.speculative,
    }
}
