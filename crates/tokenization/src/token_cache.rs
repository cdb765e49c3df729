//! Token ids from engines, cached by a digest of the query.
//!
//! An answer is valid as long as the same process runs: another one may have another tokenizer
//! under the same name. It also expires, since not every change of an engine is visible.
//!
//! **Invariant**: the cache holds at most [`BUDGET_BYTES`] and `capacity` answers.

use std::{sync::Arc, time::Duration};

use fleet::{Snapshot, WorkerView};
use kv_blocks::{Moment, PromptMedia, WorkerId};
use lru::LruCache;

/// A SHA-256 of the whole query, so that no client can make two queries collide.
pub(crate) type QueryDigest = [u8; 32];

/// Bytes of all answers together: some four million tokens.
const BUDGET_BYTES: usize = 16 << 20;
/// Bytes of an answer beside its ids and items, about.
const ANSWER_BYTES: usize = 160;
/// Lifetime of answers without `routing.lmcache`; only the bytes limit their number then.
pub(crate) const UNCONFIGURED_TTL: Duration = Duration::from_secs(600);

/// The token ids of a prompt, and the media items of the placeholders among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PromptTokens {
    pub(crate) ids: Arc<[u32]>,
    pub(crate) media: PromptMedia,
}

impl From<Arc<[u32]>> for PromptTokens {
    fn from(ids: Arc<[u32]>) -> Self {
        Self {
            ids,
            media: PromptMedia::default(),
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
    /// Returns the worker's number.
    pub(crate) fn worker(&self) -> WorkerId {
        self.worker
    }

    pub(crate) fn of(worker: &WorkerView) -> Self {
        Self {
            worker: worker.id,
            since_ns: worker.health.since.unix_timestamp_nanos(),
            ended: worker.health.ended,
        }
    }

    /// Returns whether the worker is unchanged.
    pub(crate) fn is_current(&self, snapshot: &Snapshot) -> bool {
        snapshot
            .worker(self.worker)
            .is_some_and(|worker| Self::of(worker) == *self)
    }
}

/// An answer: its tokens, source, time and lifetime.
#[derive(Clone, Debug)]
pub(crate) struct CachedTokens {
    pub(crate) prompt: PromptTokens,
    pub(crate) source: TokenSource,
    pub(crate) received_at: Moment,
    /// Lifetime from then on; the cache's bounds may end it earlier.
    pub(crate) left: Duration,
}

impl CachedTokens {
    fn bytes(&self) -> usize {
        let items = self.prompt.media.items();
        let names: usize = items.iter().map(|item| item.identifier.len()).sum();
        size_of_val(&*self.prompt.ids) + size_of_val(items) + names + ANSWER_BYTES
    }
}

/// Answers by digest; the least recently used ones make room for others.
#[derive(Debug)]
pub(crate) struct TokenCache {
    /// Lifetime of an answer, in every store; use does not extend it.
    ttl: Duration,
    /// Most answers, at least 2.
    capacity: usize,
    answers: LruCache<QueryDigest, CachedTokens>,
    bytes: usize,
    /// Whether entries stay but no new ones are added.
    closed: bool,
}

impl TokenCache {
    pub(crate) fn new(ttl: Duration, capacity: usize) -> Self {
        Self {
            ttl,
            capacity,
            // Bounded by `fit` after every change.
            answers: LruCache::unbounded(),
            bytes: 0,
            closed: false,
        }
    }

    /// Returns the tokens if their source is `still` the same.
    pub(crate) fn get(
        &mut self,
        digest: &QueryDigest,
        now: Moment,
        still: impl FnOnce(&TokenSource) -> bool,
    ) -> Option<PromptTokens> {
        let answer = self.answers.get(digest)?;
        let lifetime = self.ttl.min(answer.left);
        if now.since(answer.received_at) < lifetime && still(&answer.source) {
            return Some(answer.prompt.clone());
        }
        let expired = self.answers.pop(digest)?;
        self.bytes -= expired.bytes();
        None
    }

    pub(crate) fn insert(&mut self, digest: QueryDigest, answer: CachedTokens) {
        // An answer that would displace a large part of the cache is not added.
        if self.closed || answer.bytes() > BUDGET_BYTES / 8 {
            return;
        }
        self.bytes += answer.bytes();
        if let Some(before) = self.answers.put(digest, answer) {
            self.bytes -= before.bytes();
        }
        self.fit(self.capacity, BUDGET_BYTES);
    }

    /// Sets whether new answers are added.
    pub(crate) fn set_accepts_new(&mut self, takes: bool) {
        self.closed = !takes;
    }

    /// Drops the least recently used answers until at most half of the bounds is used.
    pub(crate) fn shrink(&mut self) {
        self.fit(self.capacity / 2, BUDGET_BYTES / 2);
    }

    fn fit(&mut self, answers: usize, bytes: usize) {
        while (self.answers.len() > answers || self.bytes > bytes)
            && let Some((_, oldest)) = self.answers.pop_lru()
        {
            self.bytes -= oldest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use kv_blocks::MediaItem;

    use super::*;

    /// The default lifetime.
    const MAX_AGE: Duration = Duration::from_secs(600);
    const SOURCE: TokenSource = TokenSource {
        worker: WorkerId(1),
        since_ns: 7,
        ended: 0,
    };

    fn cache() -> TokenCache {
        TokenCache::new(UNCONFIGURED_TTL, usize::MAX)
    }

    /// Returns the bytes of all answers.
    fn cached_bytes(known: &TokenCache) -> usize {
        let cached_bytes: usize = known.answers.iter().map(|(_, answer)| answer.bytes()).sum();
        assert_eq!(known.bytes, cached_bytes);
        cached_bytes
    }

    fn digest(number: u32) -> QueryDigest {
        let mut digest = QueryDigest::default();
        digest[..4].copy_from_slice(&number.to_le_bytes());
        digest
    }

    fn engine_answer(ids: Vec<u32>) -> CachedTokens {
        CachedTokens {
            prompt: Arc::<[u32]>::from(ids).into(),
            source: SOURCE,
            received_at: Moment::default(),
            left: Duration::MAX,
        }
    }

    fn get(known: &mut TokenCache, number: u32) -> Option<Arc<[u32]>> {
        let tokens = known.get(&digest(number), Moment::default(), |_| true)?;
        Some(tokens.ids)
    }

    #[test]
    fn the_cache_stays_within_its_bytes_and_keeps_used_entries() {
        let mut known = cache();
        known.insert(digest(u32::MAX), engine_answer(vec![7]));
        for number in 0..20_000 {
            known.insert(digest(number), engine_answer(vec![number; 1_000]));
            assert_eq!(
                get(&mut known, u32::MAX).as_deref(),
                Some(&[7][..]),
                "forgotten before {number}"
            );
        }
        let cached_bytes = cached_bytes(&known);
        assert!(
            (BUDGET_BYTES / 4..=BUDGET_BYTES).contains(&cached_bytes),
            "{cached_bytes}"
        );
        assert_eq!(get(&mut known, 0), None);
    }

    #[test]
    fn the_items_of_a_prompt_count_among_its_bytes() {
        let mut known = cache();
        let item = |offset| MediaItem {
            identifier: "x".repeat(1_000).into(),
            offset,
            length: 1,
        };
        let media = PromptMedia::new((0..100).map(item).collect()).expect("apart");
        for number in 0..1_000 {
            let mut answer = engine_answer(vec![number]);
            answer.prompt.media = media.clone();
            known.insert(digest(number), answer);
        }
        let cached_bytes = cached_bytes(&known);
        assert!(cached_bytes <= BUDGET_BYTES && known.answers.len() < 200);
        let kept = known.get(&digest(999), Moment::default(), |_| true);
        assert_eq!(kept.expect("the latest stays").media, media);
    }

    #[test]
    #[contract("V30")]
    fn the_cache_is_bounded_in_entries_and_age() {
        let mut known = TokenCache::new(Duration::from_secs(3600), 10);
        known.insert(digest(u32::MAX), engine_answer(vec![7]));
        for number in 0..100 {
            known.insert(digest(number), engine_answer(vec![number]));
            assert!(
                get(&mut known, u32::MAX).is_some(),
                "forgotten before {number}, though it is met"
            );
            assert!(known.answers.len() <= 10);
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
        let mut known = TokenCache::new(Duration::from_secs(3600), 10);
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
        let mut known = cache();
        for number in 0..20_000 {
            known.insert(digest(number), engine_answer(vec![number; 1_000]));
        }
        known.shrink();
        let cached_bytes = cached_bytes(&known);
        assert!(
            cached_bytes <= BUDGET_BYTES / 2 && get(&mut known, 19_999).is_some(),
            "{cached_bytes}"
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
        let (mut known, start) = (cache(), Moment::default());
        let at = |known: &mut TokenCache, age: Duration| {
            known.get(&digest(1), start + age, |_| true).is_some()
        };
        known.insert(digest(1), engine_answer(vec![7]));
        assert!(at(&mut known, MAX_AGE / 2) && at(&mut known, MAX_AGE - Duration::from_secs(1)));
        assert!(!at(&mut known, MAX_AGE));
        assert!(!at(&mut known, Duration::ZERO), "it is gone");
        known.insert(digest(1), engine_answer(vec![7]));
        assert_eq!(
            known.get(&digest(1), start, |source| *source != SOURCE),
            None
        );
        assert_eq!((known.answers.len(), cached_bytes(&known)), (0, 0));
        // A repeated answer counts once.
        for _ in 0..2 {
            known.insert(digest(2), engine_answer(vec![7, 8]));
        }
        assert_eq!(cached_bytes(&known), 8 + ANSWER_BYTES);
    }
}
