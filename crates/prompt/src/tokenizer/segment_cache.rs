//! Caches the ids of pieces of texts, so that a turn of a conversation costs only what it adds to
//! the turn before.
//!
//! Pieces are compared byte by byte, never by a hash alone, and found by their own group only. The cache does not define the pieces;
//! see [`CutPoints`](super::cut_points::CutPoints).
//!
//! **Invariant**: its size is at most [`BUDGET_BYTES`], for any input.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::SaltGroup;

/// Bytes of one model's cache: some hundred conversations of 8,000 tokens.
pub(super) const BUDGET_BYTES: usize = 8 << 20;

/// Number of shards: requests of different conversations rarely use the same one.
const SHARDS: usize = 8;

/// Approximate bytes of an entry beside its text and ids.
const ENTRY_BYTES: usize = 96;

/// A bounded map from pieces to ids. When it is full, each shard evicts the half of its pieces
/// without recent use.
#[derive(Debug, Default)]
pub(super) struct SegmentCache {
    shards: [Mutex<SegmentShard>; SHARDS],
    /// Whether the cache takes no new pieces; existing ones stay.
    closed: AtomicBool,
}

/// The number of a group, then the bytes of a piece: one value, so that a lookup needs no second map.
type PieceKey = Box<[u8]>;

/// Two generations: a used piece moves to the young one, and when that is full the old one is
/// dropped. This approximates LRU eviction without a list to maintain.
#[derive(Debug, Default)]
struct SegmentShard {
    young: HashMap<PieceKey, Box<[u32]>>,
    young_bytes: usize,
    old: HashMap<PieceKey, Box<[u32]>>,
}

impl SegmentCache {
    /// Appends the ids of a piece, if they are cached.
    pub(super) fn append(&self, group: SaltGroup, piece: &str, tokens: &mut Vec<u32>) -> bool {
        let key = key(group, piece);
        let mut shard = self.shard(piece);
        if let Some(ids) = shard.young.get(&key) {
            tokens.extend_from_slice(ids);
            return true;
        }
        let Some((key, ids)) = shard.old.remove_entry(&key) else {
            return false;
        };
        tokens.extend_from_slice(&ids);
        shard.keep(key, ids);
        true
    }

    /// Returns whether the ids of a piece are cached. This does not count as a use; only an append
    /// does.
    pub(super) fn knows(&self, group: SaltGroup, piece: &str) -> bool {
        let key = key(group, piece);
        let shard = self.shard(piece);
        shard.young.contains_key(&key) || shard.old.contains_key(&key)
    }

    /// Caches the ids of a piece. A piece that would fill a large part of its shard is not worth
    /// the evictions.
    pub(super) fn keep(&self, group: SaltGroup, piece: &str, ids: Vec<u32>) {
        let key = key(group, piece);
        if !self.closed.load(Ordering::Relaxed) && cost(&key, &ids) <= SegmentShard::YOUNG_BYTES / 2
        {
            self.shard(piece).keep(key, ids.into());
        }
    }

    /// Sets whether new pieces are cached.
    pub(super) fn take_new(&self, takes: bool) {
        self.closed.store(!takes, Ordering::Relaxed);
    }

    /// Keeps only recently used pieces: at most half of the capacity.
    pub(super) fn shrink(&self) {
        for shard in &self.shards {
            let old = mem::take(&mut shard.lock().unwrap_or_else(PoisonError::into_inner).old);
            // Thousands of small pieces: drop them after the unlock, as other threads wait for the
            // shard.
            drop(old);
        }
    }

    fn shard(&self, piece: &str) -> MutexGuard<'_, SegmentShard> {
        // A sum spreads well enough here, and costs less than hashing a long piece a second time.
        let sum = piece.bytes().fold(0, u8::wrapping_add);
        // A shard's maps are consistent between calls, also after a panic elsewhere.
        self.shards[usize::from(sum) % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl SegmentShard {
    /// Maximum size of a young generation, as large as the old one.
    const YOUNG_BYTES: usize = BUDGET_BYTES / SHARDS / 2;

    fn keep(&mut self, key: PieceKey, ids: Box<[u32]>) {
        let bytes = cost(&key, &ids);
        if self.young_bytes + bytes > Self::YOUNG_BYTES {
            self.old = mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(key, ids).is_none() {
            self.young_bytes += bytes;
        }
    }
}

fn key(group: SaltGroup, piece: &str) -> PieceKey {
    [&group.number().to_le_bytes()[..], piece.as_bytes()]
        .concat()
        .into()
}

fn cost(key: &[u8], ids: &[u32]) -> usize {
    key.len() + size_of_val(ids) + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    const GROUP: SaltGroup = SaltGroup::UNSALTED;

    fn known(cache: &SegmentCache, piece: &str) -> Option<Vec<u32>> {
        let mut tokens = vec![0];
        cache.append(GROUP, piece, &mut tokens).then_some(tokens)
    }

    #[test]
    fn cached_ids_are_appended_to_existing_ones() {
        let cache = SegmentCache::default();
        assert_eq!(known(&cache, "a"), None);
        cache.keep(GROUP, "a", vec![1, 2]);
        cache.keep(GROUP, "a", vec![1, 2]);
        assert_eq!(known(&cache, "a"), Some(vec![0, 1, 2]));
        assert_eq!(known(&cache, "b"), None);
        assert!(cache.knows(GROUP, "a") && !cache.knows(GROUP, "b"));
    }

    #[test]
    #[contract("S55", "G18")]
    fn a_piece_is_known_to_its_own_group_only() {
        let cache = SegmentCache::default();
        let [one, other] = ["a", "b"].map(|salt| SaltGroup::of(Some(salt)));
        cache.keep(one, "piece", vec![1]);
        assert!(cache.knows(one, "piece"));
        for group in [other, GROUP] {
            let mut tokens = Vec::new();
            assert!(!cache.knows(group, "piece") && !cache.append(group, "piece", &mut tokens));
            cache.keep(group, "piece", vec![1]);
        }
        // Nor does the other one's use take it away.
        assert!([one, other, GROUP].map(|group| cache.knows(group, "piece")) == [true; 3]);
    }

    #[test]
    fn the_cache_stays_within_its_bytes_and_keeps_used_pieces() {
        let cache = SegmentCache::default();
        cache.keep(GROUP, "met", vec![7]);
        for number in 0..200_000_u32 {
            cache.keep(GROUP, &format!("piece {number}"), vec![number; 20]);
            assert!(
                known(&cache, "met").is_some(),
                "evicted before piece {number}"
            );
        }
        let mut bytes = 0;
        for shard in &cache.shards {
            let shard = shard.lock().unwrap();
            bytes += shard
                .young
                .iter()
                .chain(&shard.old)
                .map(|(key, ids)| cost(key, ids))
                .sum::<usize>();
        }
        assert!(
            (BUDGET_BYTES / 4..=BUDGET_BYTES).contains(&bytes),
            "{bytes}"
        );
        assert_eq!(known(&cache, "piece 0"), None);
    }

    #[test]
    fn the_cache_can_be_halved_and_closed_to_new_pieces() {
        let cache = SegmentCache::default();
        cache.keep(GROUP, "first", vec![1]);
        for number in 0..200_000 {
            cache.keep(GROUP, &format!("piece {number}"), vec![number; 20]);
        }
        cache.shrink();
        assert!(
            cache
                .shards
                .iter()
                .all(|shard| shard.lock().unwrap().old.is_empty())
        );
        assert!(
            known(&cache, "piece 199999").is_some(),
            "the newest piece stays"
        );
        cache.take_new(false);
        cache.keep(GROUP, "new", vec![7]);
        assert_eq!(known(&cache, "new"), None);
        cache.take_new(true);
        cache.keep(GROUP, "new", vec![7]);
        assert!(known(&cache, "new").is_some());
    }

    #[test]
    fn a_piece_that_would_fill_much_of_the_cache_is_not_kept() {
        let cache = SegmentCache::default();
        let large = "x".repeat(BUDGET_BYTES / SHARDS / 2);
        cache.keep(GROUP, &large, vec![1]);
        assert_eq!(known(&cache, &large), None);
    }
}
