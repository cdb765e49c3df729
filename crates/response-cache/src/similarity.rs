//! An index of replies by the meaning of their question.
//!
//! A request consists of its last question and the rest. Only replies with the same rest are
//! compared (same tenant, model, parameters, earlier conversation); the one with the nearest
//! question answers, if it is near enough. The producer of the vectors defines nearness.
//!
//! **Invariant**: bounded in number and bytes; an entry answers only within its TTL, and only for
//! its own rest.

use std::collections::VecDeque;

use kv_blocks::Moment;
use parking_lot::Mutex;

use crate::{CacheEntry, CacheKey, CacheSelection, UnitVector};

/// Maximum bytes of all replies and vectors.
const MOST_BYTES: usize = 64 << 20;

/// The replies in order of use; the most recently used or stored one is last.
#[derive(Debug, Default)]
pub(crate) struct SimilarityIndex(Mutex<IndexedReplies>);

#[derive(Debug, Default)]
struct IndexedReplies {
    entries: VecDeque<IndexedReply>,
    bytes: usize,
}

/// A reply to a question.
#[derive(Debug)]
pub(crate) struct IndexedReply {
    pub(crate) rest: CacheKey,
    /// The meaning of the question.
    pub(crate) direction: UnitVector,
    pub(crate) entry: CacheEntry,
    /// The end of its lifetime.
    pub(crate) until: Moment,
}

impl IndexedReply {
    fn bytes(&self) -> usize {
        self.entry.body.len() + self.direction.bytes() + size_of::<Self>()
    }
}

impl SimilarityIndex {
    /// Returns the reply to the nearest question of this rest, with its similarity: a cosine of
    /// `threshold` or more.
    pub(crate) fn find(
        &self,
        rest: &CacheKey,
        query: &UnitVector,
        threshold: f64,
        now: Moment,
    ) -> Option<(CacheEntry, f64)> {
        let mut index = self.0.lock();
        index.forget(|reply| reply.until <= now);
        let candidates = index
            .entries
            .iter()
            .enumerate()
            .filter(|(_, reply)| reply.rest == *rest);
        let with_nearness = candidates.map(|(at, reply)| (at, reply.direction.similarity(query)));
        let (at, similarity) =
            with_nearness.reduce(|best, next| if next.1 > best.1 { next } else { best })?;
        if similarity < threshold {
            return None;
        }
        let reply = index.entries.remove(at)?;
        let entry = reply.entry.clone();
        index.entries.push_back(reply);
        Some((entry, similarity.min(1.0)))
    }

    /// Adds a reply; the least recently used ones are evicted.
    pub(crate) fn put(&self, reply: IndexedReply, max_entries: usize, now: Moment) {
        if reply.direction.is_nothing() || reply.bytes() > MOST_BYTES / 4 {
            return;
        }
        let mut index = self.0.lock();
        // Replaces the reply to an equal prompt.
        index.forget(|old| {
            old.until <= now || (old.rest == reply.rest && old.direction == reply.direction)
        });
        index.bytes += reply.bytes();
        index.entries.push_back(reply);
        index.fit(max_entries, MOST_BYTES);
    }

    /// Removes the entries of a selection.
    pub(crate) fn remove(&self, selection: CacheSelection) {
        let mut index = self.0.lock();
        index.forget(|reply| selection.contains(&reply.rest));
    }

    /// Removes all entries; returns their number.
    pub(crate) fn clear(&self) -> u64 {
        let index = std::mem::take(&mut *self.0.lock());
        index.entries.len() as u64
    }

    /// Shrinks the index to half of `max_entries`.
    pub(crate) fn shrink(&self, max_entries: usize) {
        self.0.lock().fit(max_entries / 2, MOST_BYTES / 2);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().entries.len()
    }
}

impl IndexedReplies {
    fn forget(&mut self, gone: impl Fn(&IndexedReply) -> bool) {
        let bytes = &mut self.bytes;
        self.entries.retain(|reply| {
            let gone = gone(reply);
            if gone {
                *bytes -= reply.bytes();
            }
            !gone
        });
    }

    fn fit(&mut self, entries: usize, bytes: usize) {
        while self.entries.len() > entries || self.bytes > bytes {
            let Some(oldest) = self.entries.pop_front() else {
                return;
            };
            self.bytes -= oldest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract_id::contract;

    use super::*;
    use crate::CacheScope;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    fn rest(n: u8) -> CacheKey {
        CacheKey::new(CacheScope::of("default", "m"), [n; 32])
    }

    fn direction(x: f32, y: f32) -> UnitVector {
        UnitVector::of(vec![x, y])
    }

    fn entry(text: &'static str) -> CacheEntry {
        CacheEntry {
            label: 1,
            stored_at: 0,
            body: text.into(),
        }
    }

    fn put(
        similar: &SimilarityIndex,
        (of, direction): (u8, UnitVector),
        text: &'static str,
        now: u64,
    ) {
        let reply = IndexedReply {
            rest: rest(of),
            direction,
            entry: entry(text),
            until: at(now + 300),
        };
        similar.put(reply, 2, at(now));
    }

    fn found(similar: &SimilarityIndex, of: u8, query: UnitVector, now: u64) -> Option<String> {
        let (entry, _) = similar.find(&rest(of), &query, 0.95, at(now))?;
        Some(String::from_utf8_lossy(&entry.body).into_owned())
    }

    #[test]
    #[contract("V44")]
    fn the_most_similar_question_matches_above_the_threshold() {
        let similar = SimilarityIndex::default();
        put(&similar, (1, direction(1.0, 0.0)), "east", 0);
        put(&similar, (1, direction(1.0, 0.2)), "a little north", 0);
        assert_eq!(
            found(&similar, 1, direction(1.0, 0.15), 1).as_deref(),
            Some("a little north")
        );
        assert_eq!(
            found(&similar, 1, direction(1.0, 1.0), 1),
            None,
            "a cosine of 0.83 at most"
        );
        assert_eq!(found(&similar, 1, direction(0.0, 0.0), 1), None);
    }

    #[test]
    #[contract("CK28")]
    fn a_question_with_another_rest_never_matches() {
        let similar = SimilarityIndex::default();
        put(&similar, (1, direction(1.0, 0.0)), "of one", 0);
        assert_eq!(found(&similar, 2, direction(1.0, 0.0), 1), None);
        assert_eq!(
            found(&similar, 1, direction(1.0, 0.0), 1).as_deref(),
            Some("of one")
        );
    }

    #[test]
    #[contract("V44")]
    fn an_entry_expires_and_the_least_recently_used_is_evicted() {
        let similar = SimilarityIndex::default();
        put(&similar, (1, direction(1.0, 0.0)), "a", 0);
        put(&similar, (2, direction(1.0, 0.0)), "b", 0);
        assert!(found(&similar, 1, direction(1.0, 0.0), 1).is_some());
        put(&similar, (3, direction(1.0, 0.0)), "c", 1);
        assert_eq!(found(&similar, 2, direction(1.0, 0.0), 1), None);
        assert!(found(&similar, 1, direction(1.0, 0.0), 299).is_some());
        assert_eq!(found(&similar, 1, direction(1.0, 0.0), 300), None);
        assert_eq!(
            (similar.clear(), similar.len(), similar.0.lock().bytes),
            (1, 0, 0)
        );
    }

    #[test]
    fn a_question_keeps_only_its_newest_reply() {
        let similar = SimilarityIndex::default();
        for text in ["old", "new"] {
            put(&similar, (1, direction(1.0, 0.0)), text, 0);
        }
        assert_eq!(
            (
                found(&similar, 1, direction(1.0, 0.0), 1).as_deref(),
                similar.len()
            ),
            (Some("new"), 1)
        );
    }
}
