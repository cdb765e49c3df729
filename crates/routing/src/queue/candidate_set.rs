//! Candidate lists of queued requests; equal lists are stored once.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    mem::size_of,
    sync::Arc,
};

use kv_blocks::Target;

use crate::{Candidate, ExcludedTarget};

/// The candidates of a request and its excluded targets.
#[derive(Debug)]
pub(crate) struct CandidateSet {
    pub(crate) candidates: Box<[Candidate]>,
    pub(crate) excluded: Box<[ExcludedTarget]>,
    /// The targets of the candidates, in order: the key of the request's queue.
    pub(crate) targets: Arc<[Target]>,
    fingerprint: u64,
}

impl CandidateSet {
    fn new(fingerprint: u64, candidates: &[Candidate], excluded: &[ExcludedTarget]) -> Self {
        let mut targets: Vec<Target> = candidates
            .iter()
            .map(|candidate| candidate.target)
            .collect();
        targets.sort_unstable();
        targets.dedup();
        Self {
            candidates: candidates.into(),
            excluded: excluded.into(),
            targets: targets.into(),
            fingerprint,
        }
    }

    /// Returns the memory that the list takes: its own, and its share of the table that finds
    /// queues by their targets.
    pub(crate) fn bytes(&self) -> u64 {
        let rows = size_of::<Candidate>() * self.candidates.len()
            + size_of::<ExcludedTarget>() * self.excluded.len();
        (size_of::<Self>() + rows + 4 * size_of::<Target>() * self.targets.len()) as u64
    }

    fn is(&self, candidates: &[Candidate], excluded: &[ExcludedTarget]) -> bool {
        self.candidates.len() == candidates.len()
            && self.excluded.len() == excluded.len()
            && self
                .candidates
                .iter()
                .zip(candidates)
                .all(|(one, other)| same_candidate(one, other))
            && self.excluded.iter().zip(excluded).all(|(one, other)| {
                one.target == other.target && one.reason == other.reason && one.name == other.name
            })
    }
}

/// Returns whether two candidates are equal apart from the figures that change with every reading
/// of the engine.
fn same_candidate(one: &Candidate, other: &Candidate) -> bool {
    one.target == other.target
        && one.cache == other.cache
        && one.total_blocks == other.total_blocks
        && one.tiers == other.tiers
        && one.weight.to_bits() == other.weight.to_bits()
        && one.lmcache == other.lmcache
        && one.health == other.health
        && one.stream_state == other.stream_state
        && one.name == other.name
        && one.namespace == other.namespace
}

/// Finds the list that is equal to a new one. Contains every list that a queued request refers to.
#[derive(Debug, Default)]
pub(crate) struct CandidateSets {
    by_fingerprint: HashMap<u64, Vec<SharedCandidateSet>>,
    /// Clients choose salts: without a random key, lists could be made to collide.
    hasher: RandomState,
}

#[derive(Debug)]
struct SharedCandidateSet {
    set: Arc<CandidateSet>,
    requests: usize,
}

impl CandidateSets {
    /// Returns the hasher of fingerprints; used outside the router's lock.
    pub(crate) fn hasher(&self) -> RandomState {
        self.hasher.clone()
    }

    /// Returns the lists that may be equal to one with this fingerprint.
    pub(crate) fn alike(&self, fingerprint: u64) -> Vec<Arc<CandidateSet>> {
        let shared = self.by_fingerprint.get(&fingerprint);
        shared
            .into_iter()
            .flatten()
            .map(|shared| Arc::clone(&shared.set))
            .collect()
    }

    /// Counts one more reference to the list; returns the bytes that this adds.
    pub(crate) fn retain(&mut self, set: &Arc<CandidateSet>) -> u64 {
        let alike = self.by_fingerprint.entry(set.fingerprint).or_default();
        if let Some(known) = alike.iter_mut().find(|known| Arc::ptr_eq(&known.set, set)) {
            known.requests += 1;
            return 0;
        }
        alike.push(SharedCandidateSet {
            set: Arc::clone(set),
            requests: 1,
        });
        set.bytes()
    }

    /// Counts one reference less; returns the bytes that this frees.
    pub(crate) fn release(&mut self, set: &Arc<CandidateSet>) -> u64 {
        let Some(alike) = self.by_fingerprint.get_mut(&set.fingerprint) else {
            return 0;
        };
        let Some(at) = alike.iter().position(|known| Arc::ptr_eq(&known.set, set)) else {
            return 0;
        };
        alike[at].requests -= 1;
        if alike[at].requests > 0 {
            return 0;
        }
        alike.swap_remove(at);
        if alike.is_empty() {
            self.by_fingerprint.remove(&set.fingerprint);
        }
        set.bytes()
    }

    /// Returns whether the list is stored, so that one more request costs no memory for it.
    pub(crate) fn knows(&self, set: &Arc<CandidateSet>) -> bool {
        let alike = self.by_fingerprint.get(&set.fingerprint);
        alike.is_some_and(|alike| alike.iter().any(|known| Arc::ptr_eq(&known.set, set)))
    }
}

/// Returns a hash that equal lists share, and others mostly do not.
pub(crate) fn fingerprint(
    hasher: &RandomState,
    candidates: &[Candidate],
    excluded: &[ExcludedTarget],
) -> u64 {
    let mut state = hasher.build_hasher();
    if let Some(first) = candidates.first() {
        // The namespaces within one list differ by little.
        first.namespace.hash(&mut state);
    }
    for candidate in candidates {
        (
            candidate.target,
            candidate.total_blocks,
            candidate.stream_state.is_some(),
        )
            .hash(&mut state);
        candidate.lmcache.matched_tokens.hash(&mut state);
    }
    excluded
        .iter()
        .for_each(|excluded| (excluded.target, excluded.reason).hash(&mut state));
    state.finish()
}

/// Returns the stored list that is equal, or a new one. `alike` are the stored lists with the same
/// fingerprint.
pub(crate) fn shared(
    fingerprint: u64,
    alike: Vec<Arc<CandidateSet>>,
    candidates: &[Candidate],
    excluded: &[ExcludedTarget],
) -> Arc<CandidateSet> {
    let known = alike
        .into_iter()
        .find(|known| known.is(candidates, excluded));
    known.unwrap_or_else(|| Arc::new(CandidateSet::new(fingerprint, candidates, excluded)))
}
