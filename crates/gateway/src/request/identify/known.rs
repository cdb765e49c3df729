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
pub(super) type Digest = [u8; 32];

/// Bytes of all answers together: some four million tokens.
const BUDGET_BYTES: usize = 16 << 20;
/// A generation may become as large as the one before it was.
const YOUNG_BYTES: usize = BUDGET_BYTES / 2;
/// Bytes that an answer takes beside its ids, about.
const ANSWER_BYTES: usize = 160;
/// How many answers are kept, and how long. Bytes bound them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCache {
    /// After this an answer is asked for again, however often it is met, and wherever it lies.
    pub ttl: Duration,
    /// Most answers, at least 2.
    pub capacity: usize,
}

impl Default for TokenCache {
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
pub(super) struct Teller {
    worker: WorkerId,
    since_ns: i128,
    ended: u64,
}

impl Teller {
    pub(super) fn of(worker: &WorkerView) -> Self {
        Self {
            worker: worker.id,
            since_ns: worker.since.unix_timestamp_nanos(),
            ended: worker.ended,
        }
    }

    /// Whether the worker is still what it was.
    pub(super) fn is_in(&self, snapshot: &Snapshot) -> bool {
        snapshot
            .worker(self.worker)
            .is_some_and(|worker| Self::of(worker) == *self)
    }
}

/// What was told, by whom, when, and for how long it holds at most.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) ids: Arc<[u32]>,
    pub(super) teller: Teller,
    pub(super) told_at: Moment,
    /// What was left of it then; the bounds may end it earlier.
    pub(super) left: Duration,
}

impl Answer {
    fn bytes(&self) -> usize {
        size_of_val(&*self.ids) + ANSWER_BYTES
    }
}

/// Two generations: what is met moves to the young one, and when that is full the old one goes. That is nearly "least
/// recently used goes first", without a list to keep.
#[derive(Debug, Default)]
pub(super) struct Known {
    bounds: TokenCache,
    young: HashMap<Digest, Answer>,
    young_bytes: usize,
    old: HashMap<Digest, Answer>,
    /// What is there stays, and nothing new comes.
    closed: bool,
}

impl Known {
    pub(super) fn new(bounds: TokenCache) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// The ids, if whoever told them is `still` the same.
    pub(super) fn get(
        &mut self,
        question: &Digest,
        now: Moment,
        still: impl FnOnce(&Teller) -> bool,
    ) -> Option<Arc<[u32]>> {
        let ttl = self.bounds.ttl;
        let holds = |answer: &Answer| {
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

    pub(super) fn keep(&mut self, question: Digest, answer: Answer) {
        // One that would push out much of what is there is not worth it.
        if !self.closed && answer.bytes() <= YOUNG_BYTES / 4 {
            self.put(question, answer);
        }
    }

    /// Whether new answers are kept.
    pub(super) fn take_new(&mut self, takes: bool) {
        self.closed = !takes;
    }

    /// Keeps only what was met lately: at most half of what it may hold.
    pub(super) fn shrink(&mut self) {
        self.old = HashMap::new();
    }

    fn put(&mut self, question: Digest, answer: Answer) {
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
    const TELLER: Teller = Teller {
        worker: WorkerId(1),
        since_ns: 7,
        ended: 0,
    };

    fn digest(number: u32) -> Digest {
        let mut digest = Digest::default();
        digest[..4].copy_from_slice(&number.to_le_bytes());
        digest
    }

    fn told(ids: Vec<u32>) -> Answer {
        Answer {
            ids: ids.into(),
            teller: TELLER,
            told_at: Moment::default(),
            left: Duration::MAX,
        }
    }

    fn get(known: &mut Known, number: u32) -> Option<Arc<[u32]>> {
        known.get(&digest(number), Moment::default(), |_| true)
    }

    #[test]
    fn it_stays_within_its_bytes_and_keeps_what_is_met() {
        let mut known = Known::default();
        known.keep(digest(u32::MAX), told(vec![7]));
        for number in 0..20_000 {
            known.keep(digest(number), told(vec![number; 1_000]));
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
            .map(Answer::bytes)
            .sum();
        assert!((BUDGET_BYTES / 4..=BUDGET_BYTES).contains(&held), "{held}");
        assert_eq!(get(&mut known, 0), None);
    }

    #[test]
    #[contract("V30")]
    fn it_holds_no_more_answers_than_configured_and_no_longer() {
        let mut known = Known::new(TokenCache {
            ttl: Duration::from_secs(3600),
            capacity: 10,
        });
        known.keep(digest(u32::MAX), told(vec![7]));
        for number in 0..100 {
            known.keep(digest(number), told(vec![number]));
            assert!(
                get(&mut known, u32::MAX).is_some(),
                "forgotten before {number}, though it is met"
            );
            assert!(known.young.len() + known.old.len() <= 10);
        }
        assert_eq!(get(&mut known, 0), None);
        let at = |known: &mut Known, age| {
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
        let mut known = Known::new(TokenCache {
            ttl: Duration::from_secs(3600),
            capacity: 10,
        });
        known.keep(
            digest(1),
            Answer {
                left: Duration::from_secs(60),
                ..told(vec![7])
            },
        );
        let at = |known: &mut Known, age| {
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
        let mut known = Known::default();
        for number in 0..20_000 {
            known.keep(digest(number), told(vec![number; 1_000]));
        }
        known.shrink();
        let held: usize = known
            .young
            .values()
            .chain(known.old.values())
            .map(Answer::bytes)
            .sum();
        assert!(
            held <= YOUNG_BYTES && get(&mut known, 19_999).is_some(),
            "{held}"
        );
        known.take_new(false);
        known.keep(digest(u32::MAX), told(vec![7]));
        assert_eq!(get(&mut known, u32::MAX), None);
        assert!(get(&mut known, 19_999).is_some(), "what is known stays");
        known.take_new(true);
        known.keep(digest(u32::MAX), told(vec![7]));
        assert!(get(&mut known, u32::MAX).is_some());
    }

    #[test]
    fn an_answer_ends_with_its_teller_and_with_its_age_however_often_it_is_met() {
        let (mut known, start) = (Known::default(), Moment::default());
        let at = |known: &mut Known, age: Duration| {
            known.get(&digest(1), start + age, |_| true).is_some()
        };
        known.keep(digest(1), told(vec![7]));
        assert!(at(&mut known, MAX_AGE / 2) && at(&mut known, MAX_AGE - Duration::from_secs(1)));
        assert!(!at(&mut known, MAX_AGE));
        assert!(!at(&mut known, Duration::ZERO), "it is gone");
        known.keep(digest(1), told(vec![7]));
        assert_eq!(
            known.get(&digest(1), start, |teller| *teller != TELLER),
            None
        );
        assert_eq!((known.young.len(), known.young_bytes), (0, 0));
        // Moving to the young ones makes it no younger.
        known.keep(digest(1), told(vec![7]));
        known.old = mem::take(&mut known.young);
        known.young_bytes = 0;
        assert!(at(&mut known, MAX_AGE / 2) && known.young.len() == 1);
        assert!(!at(&mut known, MAX_AGE));
        // What is told twice is counted once.
        for _ in 0..2 {
            known.keep(digest(2), told(vec![7, 8]));
        }
        assert_eq!(known.young_bytes, 8 + ANSWER_BYTES);
    }
}
