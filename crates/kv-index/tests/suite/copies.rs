//! Copies: a block stored twice needs two removals, a block reported twice needs one.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

use contract_id::contract;
use proptest::{collection::vec, prelude::*};

use crate::stream::{self, BlockPath, IndexStream};

#[test]
#[contract("V12", "V17")]
fn a_recomputed_last_block_is_a_copy_and_stays_credited_after_one_removal() {
    let mut stream = IndexStream::new();
    stream.store(&[1, 2, 3], 0);
    stream.store(&[1, 2, 3], 2);
    stream.remove(&[1, 2, 3]);
    assert!(stream.holds(&[1, 2, 3]));
    stream.remove(&[1, 2, 3]);
    assert!(!stream.holds(&[1, 2, 3]));
}

#[test]
#[contract("V12", "V17")]
fn a_report_of_reused_blocks_from_the_root_is_no_copy() {
    for blocks in [1, 3] {
        let prompt = &[1, 2, 3][..blocks];
        let mut stream = IndexStream::new();
        stream.store(prompt, 0);
        stream.store(prompt, 0);
        stream.remove(prompt);
        assert!(!stream.holds(prompt), "a counter would never release it");
    }
}

#[test]
fn a_held_block_behind_a_new_one_is_a_copy() {
    let mut stream = IndexStream::new();
    stream.store(&[1, 2, 3], 0);
    stream.remove(&[1, 2]);
    // Both were computed again, although one of them was still held.
    stream.store(&[1, 2, 3], 0);
    stream.remove(&[1, 2, 3]);
    assert!(stream.holds(&[1, 2, 3]));
    stream.remove(&[1, 2]);
    assert!(!stream.holds(&[1, 2]), "the block was new");
    stream.remove(&[1]);
    assert!(!stream.holds(&[1]), "the block was repeated");
}

/// Returns a stream with four blocks of which the last had a second copy; one of the two is
/// removed.
fn uncertain() -> IndexStream {
    let mut stream = IndexStream::new();
    stream.store(&[1, 2, 3, 4], 0);
    stream.store(&[1, 2, 3, 4], 3);
    stream.remove(&[1, 2, 3, 4]);
    stream
}

/// Stores and removes other blocks.
fn replace_tail(stream: &mut IndexStream, removals: u32) {
    for token in 0..removals {
        stream.store(&[10 + token], 0);
        stream.remove(&[10 + token]);
    }
}

#[test]
fn an_uncertain_credit_lapses_after_as_many_removals_as_there_were_blocks() {
    let mut stream = uncertain();
    replace_tail(&mut stream, 3);
    assert!(stream.holds(&[1, 2, 3, 4]));
    replace_tail(&mut stream, 1);
    assert!(!stream.holds(&[1, 2, 3, 4]));
    assert!(
        stream.holds(&[1, 2, 3]),
        "only the last block was uncertain"
    );
    // A late removal is harmless, and the block may be stored again.
    stream.remove(&[1, 2, 3, 4]);
    stream.store(&[1, 2, 3, 4], 3);
    assert!(stream.holds(&[1, 2, 3, 4]));
}

#[test]
fn a_store_of_the_block_or_behind_it_proves_that_it_is_still_held() {
    for (prompt, from) in [
        (&[1, 2, 3, 4][..], 3),
        (&[1, 2, 3, 4], 0),
        (&[1, 2, 3, 4, 5], 4),
    ] {
        let mut stream = uncertain();
        replace_tail(&mut stream, 3);
        stream.store(prompt, from);
        replace_tail(&mut stream, 40);
        assert!(stream.holds(&[1, 2, 3, 4]), "{prompt:?} from {from}");
    }
}

#[test]
fn after_lost_batches_no_credit_is_uncertain_and_no_block_counts_twice() {
    let mut stream = uncertain();
    stream.store(&[1, 2, 3], 2);
    stream.index.mark_loss(stream::TARGET);
    assert!(!stream.holds(&[1, 2, 3, 4]));
    assert!(stream.holds(&[1, 2, 3]));
    stream.remove(&[1, 2, 3]);
    assert!(!stream.holds(&[1, 2, 3]));
}

#[test]
fn copy_counts_end_with_their_blocks() {
    let mut stream = uncertain();
    stream.store(&[1, 2, 3], 2);
    stream.cleared();
    stream.store(&[1, 2, 3, 4], 0);
    for end in 1..=4 {
        stream.remove(&[1, 2, 3, 4][..end]);
    }
    assert_eq!(stream.resident(), [].into());
    stream.index.remove_worker(stream::TARGET.worker);
    let stats = stream.index.stats();
    assert_eq!((stats.distinct, stats.namespaces), (0, 0));
}

#[test]
#[contract("V12", "V17")]
fn copies_and_uncertain_credits_outlive_a_snapshot() {
    let mut stream = IndexStream::new();
    stream.store(&[1, 2, 3], 0);
    stream.store(&[1, 2, 3], 2);
    stream.moved();
    stream.remove(&[1, 2, 3]);
    assert!(stream.holds(&[1, 2, 3]), "there were two copies");
    stream.moved();
    stream.remove(&[1, 2, 3]);
    assert!(!stream.holds(&[1, 2, 3]));
    let mut stream = uncertain();
    replace_tail(&mut stream, 3);
    stream.moved();
    assert!(stream.holds(&[1, 2, 3, 4]));
    replace_tail(&mut stream, 1);
    assert!(
        !stream.holds(&[1, 2, 3, 4]),
        "the credit lapses as without the snapshot"
    );
}

#[derive(Clone, Debug)]
enum CopyStep {
    Store { prefix: BlockPath, from: usize },
    Remove(BlockPath),
    Cleared,
    Hole,
    Moved,
}

fn prefix(tokens: u32, blocks: Range<usize>) -> impl Strategy<Value = BlockPath> {
    vec(0..tokens, blocks)
}

fn step() -> impl Strategy<Value = CopyStep> {
    prop_oneof![
        8 => (prefix(2, 1..5), 0..5_usize)
            .prop_map(|(prefix, from)| CopyStep::Store { from: from % prefix.len(), prefix }),
        8 => prefix(2, 1..5).prop_map(CopyStep::Remove),
        1 => Just(CopyStep::Cleared),
        1 => Just(CopyStep::Hole),
        2 => Just(CopyStep::Moved),
    ]
}

/// A paged cache as in vLLM: blocks are computed into free slots, least recently used first; a
/// fully cached prompt computes its last block again. Requests end at once.
struct PagedCache {
    /// The content of each slot; the front is used next.
    slots: VecDeque<Option<BlockPath>>,
    removals: u64,
    /// Blocks that lost one of several copies and had no event since: the time of the loss, and the
    /// number of blocks in slots.
    lost_copies: BTreeMap<BlockPath, (u64, u64)>,
    /// Whether one of those outlived all blocks that were in slots at its loss.
    outlived: bool,
}

/// Enough slots for every prompt, and no more copies of a block than the index counts.
const SLOTS: usize = 8;

impl PagedCache {
    fn new() -> Self {
        Self {
            slots: vec![None; SLOTS].into(),
            removals: 0,
            lost_copies: BTreeMap::new(),
            outlived: false,
        }
    }

    fn holds(&self, prefix: &[u32]) -> bool {
        self.slots
            .iter()
            .flatten()
            .any(|resident| resident == prefix)
    }

    fn content(&self) -> BTreeSet<BlockPath> {
        self.slots.iter().flatten().cloned().collect()
    }

    fn request(&mut self, prompt: &[u32], full_report: bool, stream: &mut IndexStream) {
        let cached = (1..=prompt.len())
            .take_while(|end| self.holds(&prompt[..*end]))
            .count();
        let reused = cached.min(prompt.len() - 1);
        let mut used = Vec::new();
        for end in 1..=reused {
            let at = self
                .slots
                .iter()
                .position(|slot| slot.as_deref() == Some(&prompt[..end]))
                .unwrap();
            used.push(self.slots.remove(at).unwrap());
        }
        for end in reused + 1..=prompt.len() {
            if let Some(evicted) = self.slots.pop_front().unwrap() {
                self.removals += 1;
                // The blocks that this request computes are younger than all of these, and not
                // announced yet.
                let announced = || self.slots.iter().chain(&used[..reused]).flatten();
                let (blocks, left) = (
                    announced().count() as u64,
                    announced().any(|resident| *resident == evicted),
                );
                stream.remove(&evicted);
                self.lost_copies.remove(&evicted);
                if left {
                    self.lost_copies.insert(evicted, (self.removals, blocks));
                }
            }
            used.push(Some(prompt[..end].to_vec()));
        }
        // The block is reused without any event: the index cannot know that.
        self.outlived |= self
            .lost_copies
            .values()
            .any(|(then, blocks)| self.removals - then >= *blocks);
        if full_report && reused > 0 {
            stream.store(&prompt[..reused], 0);
            self.lost_copies
                .retain(|prefix, _| !prompt[..reused].starts_with(prefix));
        }
        stream.store(prompt, reused);
        self.lost_copies
            .retain(|prefix, _| prefix.len() < reused || !prompt.starts_with(prefix));
        // The end of a prompt is the first to be reused.
        self.slots.extend(used.into_iter().rev());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[contract("V12", "V17")]
    fn the_credit_lies_between_a_set_and_a_counter(steps in vec(step(), 0..80)) {
        let mut stream = IndexStream::new();
        for step in steps {
            match step {
                CopyStep::Store { prefix, from } => stream.store(&prefix, from),
                CopyStep::Remove(prefix) => stream.remove(&prefix),
                CopyStep::Cleared => stream.cleared(),
                CopyStep::Hole => stream.index.mark_loss(stream::TARGET),
                CopyStep::Moved => stream.moved(),
            }
            let resident = stream.resident();
            prop_assert!(resident.is_superset(&stream.set), "{:?} is not credited", &stream.set - &resident);
            prop_assert!(resident.is_subset(&stream.counted()), "{:?} is credited", &resident - &stream.counted());
        }
    }

    #[test]
    #[contract("V12", "V17")]
    fn an_engine_without_repetitions_is_credited_with_exactly_its_blocks(
        prompts in vec((prefix(3, 2..5), 0..8_u32), 0..120),
    ) {
        // No prompts of one block: computed again they look like a report, and count once.
        let (mut pool, mut stream) = (PagedCache::new(), IndexStream::new());
        for (prompt, number) in prompts {
            if number == 0 {
                stream.moved();
            }
            pool.request(&prompt, false, &mut stream);
            let (resident, truth) = (stream.resident(), pool.content());
            // After the first copy that outlives a turnover the index credits too little, and never
            // too much.
            prop_assert!(pool.outlived || resident == truth, "{resident:?} is credited, {truth:?} is there");
            prop_assert!(resident.is_subset(&truth), "{resident:?} is credited, {truth:?} is there");
        }
    }

    #[test]
    #[contract("V12", "V17")]
    fn wrong_credits_after_reports_end_after_turnovers(
        prompts in vec((prefix(3, 1..5), any::<bool>()), 0..120),
    ) {
        let (mut pool, mut stream) = (PagedCache::new(), IndexStream::new());
        for (prompt, full_report) in prompts {
            pool.request(&prompt, full_report, &mut stream);
        }
        // Prompts without common blocks replace the whole cache content.
        for round in 0..600_u32 {
            pool.request(&[10 + round % 50], false, &mut stream);
        }
        prop_assert_eq!(stream.resident(), pool.content());
    }
}
