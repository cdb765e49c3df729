//! Token ids that engines told earlier, by a digest of the question.
//!
//! What an engine told holds while the same process is there: another one may have another tokenizer under the same name.
//! And not for ever, since not every change of an engine shows.
//!
//! **Invariant**: what it holds is at most [`BUDGET_BYTES`] and [`TokenCache::capacity`], whatever is put in.

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use fleet::{Snapshot, WorkerView};
use kv_blocks::{Moment, WorkerId};

/// A SHA-256 of everything that was asked, so that nobody can make two questions look alike.
pub(super) type QueryDigest = [u8; 32];

/// Bytes of all answers together: some four million tokens.
const BUDGET_BYTES: usize = 16 << 20;
/// A generation may become as large as the one before it was.
const YOUNG_BYTES: usize = BUDGET_BYTES / 2;
/// Bytes that an answer takes beside its ids, about.
const ANSWER_BYTES: usize = 160;
/// How many answers are kept, and how long. Bytes bound them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCacheSettings {
    /// After this an answer is asked for again, however often it is met, and wherever it lies.
    pub ttl: Duration,
    /// Most answers, at least 2.
    pub capacity: usize,
}

impl Default for TokenCacheSettings {
    /// Ten minutes, and as many as there are bytes for.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(600),
            capacity: usize::MAX,
        }
    }
}

/// A worker as it was when it answered: without a change of its state, and the same process as far as can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenSource {
    worker: WorkerId,
    since_ns: i128,
    ended: u64,
}

impl TokenSource {
    pub(super) fn of(worker: &WorkerView) -> Self {
        Self {
            worker: worker.id,
            since_ns: worker.since.unix_timestamp_nanos(),
            ended: worker.ended,
        }
    }

    /// Whether the worker is still what it was.
    pub(super) fn is_current(&self, snapshot: &Snapshot) -> bool {
        snapshot
            .worker(self.worker)
            .is_some_and(|worker| Self::of(worker) == *self)
    }
}

/// What was told, by whom, when, and for how long it holds at most.
#[derive(Clone, Debug)]
pub(super) struct CachedTokens {
    pub(super) ids: Arc<[u32]>,
    pub(super) teller: TokenSource,
    pub(super) told_at: Moment,
    /// What was left of it then; the bounds may end it earlier.
    pub(super) left: Duration,
}

impl CachedTokens {
    fn bytes(&self) -> usize {
        size_of_val(&*self.ids) + ANSWER_BYTES
    }
}

/// Two generations: what is met moves to the young one, and when that is full the old one goes. That is nearly "least
/// recently used goes first", without a list to keep.
#[derive(Debug, Default)]
pub(super) struct TokenCache {
    bounds: TokenCacheSettings,
    young: HashMap<QueryDigest, CachedTokens>,
    young_bytes: usize,
    old: HashMap<QueryDigest, CachedTokens>,
    /// What is there stays, and nothing new comes.
    closed: bool,
}

impl TokenCache {
    pub(super) fn new(bounds: TokenCacheSettings) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// The ids, if whoever told them is `still` the same.
    pub(super) fn get(
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

    pub(super) fn insert(&mut self, question: QueryDigest, answer: CachedTokens) {
        // One that would push out much of what is there is not worth it.
        if !self.closed && answer.bytes() <= YOUNG_BYTES / 4 {
            self.put(question, answer);
        }
    }

    /// Whether new answers are kept.
    pub(super) fn set_accepts_new(&mut self, takes: bool) {
        self.closed = !takes;
    }

    /// Keeps only what was met lately: at most half of what it may hold.
    pub(super) fn shrink(&mut self) {
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

    /// Where nothing else is said.
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

    fn told(ids: Vec<u32>) -> CachedTokens {
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
    fn it_stays_within_its_bytes_and_keeps_what_is_met() {
        let mut known = TokenCache::default();
        known.insert(digest(u32::MAX), told(vec![7]));
        for number in 0..20_000 {
            known.insert(digest(number), told(vec![number; 1_000]));
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
    fn it_holds_no_more_answers_than_configured_and_no_longer() {
        let mut known = TokenCache::new(TokenCacheSettings {
            ttl: Duration::from_secs(3600),
            capacity: 10,
        });
        known.insert(digest(u32::MAX), told(vec![7]));
        for number in 0..100 {
            known.insert(digest(number), told(vec![number]));
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
    fn what_another_router_was_told_earlier_holds_for_the_rest_of_its_time() {
        let mut known = TokenCache::new(TokenCacheSettings {
            ttl: Duration::from_secs(3600),
            capacity: 10,
        });
        known.insert(
            digest(1),
            CachedTokens {
                left: Duration::from_secs(60),
                ..told(vec![7])
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
    fn short_of_memory_it_keeps_half_and_takes_nothing_new() {
        let mut known = TokenCache::default();
        for number in 0..20_000 {
            known.insert(digest(number), told(vec![number; 1_000]));
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
        known.insert(digest(u32::MAX), told(vec![7]));
        assert_eq!(get(&mut known, u32::MAX), None);
        assert!(get(&mut known, 19_999).is_some(), "what is known stays");
        known.set_accepts_new(true);
        known.insert(digest(u32::MAX), told(vec![7]));
        assert!(get(&mut known, u32::MAX).is_some());
    }

    #[test]
    fn an_answer_ends_with_its_teller_and_with_its_age_however_often_it_is_met() {
        let (mut known, start) = (TokenCache::default(), Moment::default());
        let at = |known: &mut TokenCache, age: Duration| {
            known.get(&digest(1), start + age, |_| true).is_some()
        };
        known.insert(digest(1), told(vec![7]));
        assert!(at(&mut known, MAX_AGE / 2) && at(&mut known, MAX_AGE - Duration::from_secs(1)));
        assert!(!at(&mut known, MAX_AGE));
        assert!(!at(&mut known, Duration::ZERO), "it is gone");
        known.insert(digest(1), told(vec![7]));
        assert_eq!(
            known.get(&digest(1), start, |teller| *teller != TELLER),
            None
        );
        assert_eq!((known.young.len(), known.young_bytes), (0, 0));
        // Moving to the young ones makes it no younger.
        known.insert(digest(1), told(vec![7]));
        known.old = mem::take(&mut known.young);
        known.young_bytes = 0;
        assert!(at(&mut known, MAX_AGE / 2) && known.young.len() == 1);
        assert!(!at(&mut known, MAX_AGE));
        // What is told twice is counted once.
        for _ in 0..2 {
            known.insert(digest(2), told(vec![7, 8]));
        }
        assert_eq!(known.young_bytes, 8 + ANSWER_BYTES);
    }
}
