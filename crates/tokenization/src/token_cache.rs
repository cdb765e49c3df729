//! Token ids from engines, cached by a digest of the query.
//!
//! An answer is valid as long as the same process runs: another one may have another tokenizer
//! under the same name. It also expires, since not every change of an engine is visible.
//!
//! **Invariant**: the cache holds at most [`BUDGET_BYTES`] and [`TokenCacheSettings::capacity`]
//! answers.

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use fleet::{Snapshot, WorkerView};
use kv_blocks::{Moment, WorkerId};

/// A SHA-256 of the whole query, so that no client can make two queries collide.
pub(crate) type QueryDigest = [u8; 32];

/// Bytes of all answers together: some four million tokens.
const BUDGET_BYTES: usize = 16 << 20;
/// Most bytes of one generation.
const YOUNG_BYTES: usize = BUDGET_BYTES / 2;
/// Bytes of an answer beside its ids, about.
const ANSWER_BYTES: usize = 160;
/// Most cached answers, and their lifetime. Bytes bound them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCacheSettings {
    /// Lifetime of an answer, in every store; use does not extend it.
    pub ttl: Duration,
    /// Most answers, at least 2.
    pub capacity: usize,
}

impl Default for TokenCacheSettings {
    /// Ten minutes, and as many answers as fit the bytes.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(600),
            capacity: usize::MAX,
        }
    }
}

/// The worker that answered, identified by its state and its process, as far as the router can see
/// that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenSource {
    worker: WorkerId,
    since_ns: i128,
    ended: u64,
}

impl TokenSource {
    pub(crate) fn of(worker: &WorkerView) -> Self {
        Self {
            worker: worker.id,
            since_ns: worker.since.unix_timestamp_nanos(),
            ended: worker.ended,
        }
    }

    /// Returns whether the worker is unchanged.
    pub(crate) fn is_current(&self, snapshot: &Snapshot) -> bool {
        snapshot
            .worker(self.worker)
            .is_some_and(|worker| Self::of(worker) == *self)
    }
}

/// An answer: its ids, source, time and lifetime.
#[derive(Clone, Debug)]
pub(crate) struct CachedTokens {
    pub(crate) ids: Arc<[u32]>,
    pub(crate) teller: TokenSource,
    pub(crate) told_at: Moment,
    /// Lifetime from then on; the cache's bounds may end it earlier.
    pub(crate) left: Duration,
}

impl CachedTokens {
    fn bytes(&self) -> usize {
        size_of_val(&*self.ids) + ANSWER_BYTES
    }
}

/// A cache of two generations: a used entry moves to the young one; when that is full, the old one
/// is dropped. That approximates LRU without a list.
#[derive(Debug, Default)]
pub(crate) struct TokenCache {
    bounds: TokenCacheSettings,
    young: HashMap<QueryDigest, CachedTokens>,
    young_bytes: usize,
    old: HashMap<QueryDigest, CachedTokens>,
    /// Whether entries stay but no new ones are added.
    closed: bool,
}

impl TokenCache {
    pub(crate) fn new(bounds: TokenCacheSettings) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// Returns the ids if their source is `still` the same.
    pub(crate) fn get(
        &mut self,
        question: &QueryDigest,
        now: Moment,
        still: impl FnOnce(&TokenSource) -> bool,
    ) -> Option<Arc<[u32]>> {
        let ttl = self.bounds.ttl;
        let holds = |answer: &CachedTokens| {
            now.since(answer.told_at) < ttl.min(answer.left) && still(&answer.teller)
        };
        if let Some(answer) = self.young.get(question) {
            if holds(answer) {
                return Some(Arc::clone(&answer.ids));
            }
            self.young_bytes -= answer.bytes();
            self.young.remove(question);
            return None;
        }
        let answer = self.old.remove(question).filter(holds)?;
        let ids = Arc::clone(&answer.ids);
        self.put(*question, answer);
        Some(ids)
    }

    pub(crate) fn insert(&mut self, question: QueryDigest, answer: CachedTokens) {
        // An answer that would displace a large part of the cache is not added.
        if !self.closed && answer.bytes() <= YOUNG_BYTES / 4 {
            self.put(question, answer);
        }
    }

    /// Sets whether new answers are added.
    pub(crate) fn set_accepts_new(&mut self, takes: bool) {
        self.closed = !takes;
    }

    /// Drops entries that were not used recently: at most half of the bound stays.
    pub(crate) fn shrink(&mut self) {
        self.old = HashMap::new();
    }

    fn put(&mut self, question: QueryDigest, answer: CachedTokens) {
        let bytes = answer.bytes();
        let is_full = self.young.len() >= (self.bounds.capacity / 2).max(1);
        if is_full || self.young_bytes + bytes > YOUNG_BYTES {
            self.old = mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        if let Some(before) = self.young.insert(question, answer) {
            self.young_bytes -= before.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    /// The default lifetime.
    const MAX_AGE: Duration = Duration::from_secs(600);
    const TELLER: TokenSource = TokenSource {
        worker: WorkerId(1),
        since_ns: 7,
        ended: 0,
    };

    fn digest(number: u32) -> QueryDigest {
        let mut digest = QueryDigest::default();
        digest[..4].copy_from_slice(&number.to_le_bytes());
        digest
    }

    fn engine_answer(ids: Vec<u32>) -> CachedTokens {
        CachedTokens {
            ids: ids.into(),
            teller: TELLER,
            told_at: Moment::default(),
            left: Duration::MAX,
        }
    }

    fn get(known: &mut TokenCache, number: u32) -> Option<Arc<[u32]>> {
        known.get(&digest(number), Moment::default(), |_| true)
    }

    #[test]
    fn the_cache_stays_within_its_bytes_and_keeps_used_entries() {
        let mut known = TokenCache::default();
        known.insert(digest(u32::MAX), engine_answer(vec![7]));
        for number in 0..20_000 {
            known.insert(digest(number), engine_answer(vec![number; 1_000]));
            assert_eq!(
                get(&mut known, u32::MAX).as_deref(),
                Some(&[7][..]),
                "forgotten before {number}"
            );
        }
        let held: usize = known
            .young
            .values()
            .chain(known.old.values())
            .map(CachedTokens::bytes)
            .sum();
        assert!((BUDGET_BYTES / 4..=BUDGET_BYTES).contains(&held), "{held}");
        assert_eq!(get(&mut known, 0), None);
    }

    #[test]
    #[contract("V30")]
    fn the_cache_is_bounded_in_entries_and_age() {
        let mut known = TokenCache::new(TokenCacheSettings {
            ttl: Duration::from_secs(3600),
            capacity: 10,
        });
        known.insert(digest(u32::MAX), engine_answer(vec![7]));
        for number in 0..100 {
            known.insert(digest(number), engine_answer(vec![number]));
            assert!(
                get(&mut known, u32::MAX).is_some(),
                "forgotten before {number}, though it is met"
            );
            assert!(known.young.len() + known.old.len() <= 10);
        }
        assert_eq!(get(&mut known, 0), None);
        let at = |known: &mut TokenCache, age| {
            known
                .get(&digest(99), Moment::default() + age, |_| true)
                .is_some()
        };
        assert!(at(&mut known, Duration::from_secs(3599)));
        assert!(!at(&mut known, Duration::from_secs(3600)));
    }

    #[test]
    #[contract("V30")]
    fn an_answer_from_another_router_keeps_its_remaining_lifetime() {
        let mut known = TokenCache::new(TokenCacheSettings {
            ttl: Duration::from_secs(3600),
            capacity: 10,
        });
        known.insert(
            digest(1),
            CachedTokens {
                left: Duration::from_secs(60),
                ..engine_answer(vec![7])
            },
        );
        let at = |known: &mut TokenCache, age| {
            known
                .get(&digest(1), Moment::default() + age, |_| true)
                .is_some()
        };
        assert!(at(&mut known, Duration::from_secs(59)));
        assert!(!at(&mut known, Duration::from_secs(60)));
    }

    #[test]
    #[contract("F75")]
    fn under_memory_pressure_the_cache_keeps_half_and_accepts_nothing_new() {
        let mut known = TokenCache::default();
        for number in 0..20_000 {
            known.insert(digest(number), engine_answer(vec![number; 1_000]));
        }
        known.shrink();
        let held: usize = known
            .young
            .values()
            .chain(known.old.values())
            .map(CachedTokens::bytes)
            .sum();
        assert!(
            held <= YOUNG_BYTES && get(&mut known, 19_999).is_some(),
            "{held}"
        );
        known.set_accepts_new(false);
        known.insert(digest(u32::MAX), engine_answer(vec![7]));
        assert_eq!(get(&mut known, u32::MAX), None);
        assert!(get(&mut known, 19_999).is_some(), "known entries stay");
        known.set_accepts_new(true);
        known.insert(digest(u32::MAX), engine_answer(vec![7]));
        assert!(get(&mut known, u32::MAX).is_some());
    }

    #[test]
    fn an_answer_expires_with_its_engine_or_its_age_however_often_it_is_used() {
        let (mut known, start) = (TokenCache::default(), Moment::default());
        let at = |known: &mut TokenCache, age: Duration| {
            known.get(&digest(1), start + age, |_| true).is_some()
        };
        known.insert(digest(1), engine_answer(vec![7]));
        assert!(at(&mut known, MAX_AGE / 2) && at(&mut known, MAX_AGE - Duration::from_secs(1)));
        assert!(!at(&mut known, MAX_AGE));
        assert!(!at(&mut known, Duration::ZERO), "it is gone");
        known.insert(digest(1), engine_answer(vec![7]));
        assert_eq!(
            known.get(&digest(1), start, |teller| *teller != TELLER),
            None
        );
        assert_eq!((known.young.len(), known.young_bytes), (0, 0));
        // A move to the young generation does not extend its life.
        known.insert(digest(1), engine_answer(vec![7]));
        known.old = mem::take(&mut known.young);
        known.young_bytes = 0;
        assert!(at(&mut known, MAX_AGE / 2) && known.young.len() == 1);
        assert!(!at(&mut known, MAX_AGE));
        // A repeated answer counts once.
        for _ in 0..2 {
            known.insert(digest(2), engine_answer(vec![7, 8]));
        }
        assert_eq!(known.young_bytes, 8 + ANSWER_BYTES);
    }
}
