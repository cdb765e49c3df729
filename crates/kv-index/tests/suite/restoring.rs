//! A restarted process credits the blocks of a snapshot only where the stream continues.

use std::{collections::BTreeSet, sync::Arc};

use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, IndexUpdate, Moment, Namespace, PromptIdentity,
    RemovedBlocks, StoredBlocks, StreamPosition, Target, Tier, WorkerId,
};
use kv_index::{DumpCursor, IndexSettings, KvIndex, LoadSummary, MediumStream, Publisher};

use crate::oracle::random::SplitMix64;

const NOW: Moment = Moment::START;

fn target(worker: u32) -> Target {
    Target {
        worker: WorkerId(worker),
        rank: DpRank(0),
    }
}

fn size() -> BlockSize {
    BlockSize::new(1).unwrap()
}

fn name(conversation: u32, block: u32) -> EngineHash {
    EngineHash((u64::from(conversation) << 32) + u64::from(block) + 1)
}

fn store(conversation: u32, blocks: std::ops::Range<u32>, tier: Tier) -> IndexUpdate {
    IndexUpdate::Stored(StoredBlocks {
        hashes: blocks
            .clone()
            .map(|block| name(conversation, block))
            .collect(),
        parent: blocks
            .start
            .checked_sub(1)
            .map(|before| name(conversation, before)),
        tokens: blocks.map(|block| conversation * 1000 + block).collect(),
        block_size: size(),
        lora: None,
        media: Vec::new(),
        salt: None,
        tier,
    })
}

fn remove(conversation: u32, blocks: std::ops::Range<u32>) -> IndexUpdate {
    IndexUpdate::Removed(RemovedBlocks {
        hashes: blocks.map(|block| name(conversation, block)).collect(),
        tier: Tier::Device,
    })
}

fn position(seq: usize) -> StreamPosition {
    StreamPosition::of(seq as u64, b"batch")
}

fn index() -> KvIndex {
    KvIndex::new(IndexSettings::default())
}

fn registered(workers: u32) -> KvIndex {
    let index = index();
    for worker in 0..workers {
        index.register(target(worker), Arc::from("m"));
    }
    index
}

fn saved(index: &KvIndex) -> Vec<u8> {
    let mut file = Vec::new();
    index.save(&mut file).unwrap();
    file
}

fn restored(file: &[u8]) -> (KvIndex, LoadSummary) {
    let index = index();
    let summary = index.restore(&mut &*file).unwrap();
    (index, summary)
}

/// Returns how many blocks of a conversation a lookup credits to a worker.
fn credited(index: &KvIndex, worker: u32, conversation: u32) -> u32 {
    let namespace = Namespace {
        model: Arc::from("m"),
        lora: None,
        salt: None,
        block_size: size(),
        identity: PromptIdentity::Tokens,
    };
    let tokens: Vec<u32> = (0..100).map(|block| conversation * 1000 + block).collect();
    let chain = HashScheme::default().chain(None, &tokens, size());
    let overlaps = index.lookup(&namespace, &chain, NOW);
    let of = overlaps
        .iter()
        .find(|overlap| overlap.target == target(worker));
    of.map_or(0, |overlap| overlap.blocks.device)
}

/// Returns the file of an index in which worker 0 has a position and worker 1 has none.
fn file() -> Vec<u8> {
    let index = registered(2);
    index.apply(target(0), &store(1, 0..8, Tier::Device));
    index.apply(target(1), &store(1, 0..8, Tier::Device));
    index.note_position(target(0), Some(position(4)));
    saved(&index)
}

#[test]
fn restored_blocks_are_credited_once_they_are_confirmed() {
    let (index, summary) = restored(&file());
    assert_eq!(
        (summary.targets, summary.blocks, summary.memberships),
        (1, 8, 8)
    );
    assert_eq!(index.resume_position(target(0)), Some(position(4)));
    assert_eq!(index.unproven_targets(), [target(0)]);
    assert_eq!(credited(&index, 0, 1), 0, "nothing is proven");
    index.confirm(target(0));
    assert_eq!(credited(&index, 0, 1), 8);
    assert_eq!(index.resume_position(target(0)), None);
    // A second call changes nothing.
    index.confirm(target(0));
    assert_eq!(credited(&index, 0, 1), 8);
}

#[test]
fn a_target_without_a_position_gets_no_blocks() {
    let (index, _) = restored(&file());
    index.confirm(target(1));
    assert_eq!(credited(&index, 1, 1), 0);
    assert_eq!(index.blocks_per_tier(target(1)), [0; 4]);
}

#[test]
fn a_cleared_target_needs_no_proof_for_what_it_stores_afterwards() {
    let (index, _) = restored(&file());
    index.clear(target(0));
    assert_eq!(index.resume_position(target(0)), None);
    index.apply(target(0), &store(2, 0..3, Tier::Device));
    assert_eq!((credited(&index, 0, 1), credited(&index, 0, 2)), (0, 3));
    let (again, _) = restored(&saved(&index));
    assert_eq!(
        again.blocks_per_tier(target(0)),
        [0; 4],
        "a cleared target has no position until the next batch"
    );
}

#[test]
fn a_target_that_now_serves_another_model_loses_its_restored_blocks() {
    let (index, _) = restored(&file());
    index.register(target(0), Arc::from("other"));
    assert_eq!(index.resume_position(target(0)), None);
    assert_eq!(index.blocks_per_tier(target(0)), [0; 4]);
}

#[test]
fn a_restored_index_that_is_saved_before_its_proof_keeps_the_position() {
    let (index, _) = restored(&file());
    let (again, _) = restored(&saved(&index));
    assert_eq!(again.resume_position(target(0)), Some(position(4)));
}

/// The blocks of one conversation, the last of which is stored again by batch 5, which is applied
/// as a whole or only in part.
fn with_a_copy(whole_batch: bool) -> KvIndex {
    let index = registered(1);
    index.apply(target(0), &store(1, 0..8, Tier::Device));
    index.note_position(target(0), Some(position(4)));
    index.apply(target(0), &store(1, 7..8, Tier::Device));
    if whole_batch {
        index.note_position(target(0), Some(position(5)));
    }
    index
}

/// Removes the last block until its credit ends; returns the number of removals.
fn removals_of_the_last_block(index: &KvIndex) -> u32 {
    let removals = (1..10).find(|_| {
        index.apply(target(0), &remove(1, 7..8));
        credited(index, 0, 1) == 7
    });
    removals.expect("a block has an end")
}

#[test]
fn copies_are_restored_from_whole_batches() {
    let (index, _) = restored(&saved(&with_a_copy(true)));
    index.confirm(target(0));
    assert_eq!(credited(&index, 0, 1), 8);
    assert_eq!(removals_of_the_last_block(&index), 2);
}

#[test]
fn a_batch_that_was_applied_in_part_counts_nothing_twice_when_it_is_repeated() {
    let (first, _) = restored(&saved(&with_a_copy(false)));
    // It may be saved again before the batch comes.
    let (second, _) = restored(&saved(&first));
    for index in [first, second] {
        assert_eq!(index.resume_position(target(0)), Some(position(4)));
        index.apply(target(0), &store(1, 7..8, Tier::Device));
        index.note_position(target(0), Some(position(5)));
        index.confirm(target(0));
        assert_eq!(removals_of_the_last_block(&index), 1);
    }
}

#[test]
fn what_is_saved_before_the_proof_has_the_position_of_the_last_batch() {
    let (first, _) = restored(&saved(&with_a_copy(false)));
    // Batches 5 and 6 come from another router; the last block is stored again in each.
    for number in [5, 6] {
        first.apply(target(0), &store(1, 7..8, Tier::Device));
        first.note_position(target(0), Some(position(number)));
    }
    assert_eq!(credited(&first, 0, 1), 0, "nothing is proven");
    let (second, _) = restored(&saved(&first));
    assert_eq!(second.resume_position(target(0)), Some(position(6)));
    second.confirm(target(0));
    // Batch 5 repeated a part of itself, so only batch 6 counts as a copy.
    assert_eq!(credited(&second, 0, 1), 8);
    assert_eq!(removals_of_the_last_block(&second), 2);
}

#[test]
fn a_resync_behind_the_saved_position_does_not_hide_what_the_next_batch_repeats() {
    let (index, _) = restored(&saved(&with_a_copy(false)));
    index.note_position(target(0), None);
    index.apply(target(0), &store(1, 6..8, Tier::Device));
    index.mark_loss(target(0));
    index.note_position(target(0), Some(position(4)));
    index.apply(target(0), &store(1, 7..8, Tier::Device));
    index.note_position(target(0), Some(position(5)));
    index.confirm(target(0));
    assert_eq!(removals_of_the_last_block(&index), 1);
}

#[test]
fn trust_and_proof_are_both_needed_in_either_order() {
    for trusted_first in [true, false] {
        let (index, _) = restored(&file());
        index.trust(target(0), false);
        if trusted_first {
            index.trust(target(0), true);
            assert_eq!(credited(&index, 0, 1), 0);
            index.confirm(target(0));
        } else {
            index.confirm(target(0));
            assert_eq!(credited(&index, 0, 1), 0);
            index.trust(target(0), true);
        }
        assert_eq!(credited(&index, 0, 1), 8);
    }
}

#[test]
fn what_the_stream_of_the_engine_alone_cannot_continue_has_no_position() {
    // A store beside the engine.
    let index = registered(1);
    index.apply(target(0), &store(1, 0..8, Tier::Device));
    index.note_position(target(0), Some(position(4)));
    let stream = MediumStream::of_tier(Publisher::Store, Tier::Disk);
    index.apply_from(target(0), &store(2, 0..8, Tier::Disk), &stream);
    let (other, _) = restored(&saved(&index));
    assert_eq!(other.blocks_per_tier(target(0)), [0; 4]);
    // Chunks, whose names are not saved.
    let index = registered(1);
    index.apply(target(0), &store(1, 0..8, Tier::Device));
    let chunk = IndexUpdate::Stored(StoredBlocks {
        hashes: vec![EngineHash(77)],
        parent: None,
        tokens: (1000..1004).collect(),
        block_size: BlockSize::new(4).unwrap(),
        lora: None,
        media: Vec::new(),
        salt: None,
        tier: Tier::Host,
    });
    assert_eq!(index.apply(target(0), &chunk).applied, 1);
    index.note_position(target(0), Some(position(4)));
    let (other, _) = restored(&saved(&index));
    assert_eq!(other.blocks_per_tier(target(0)), [0; 4]);
}

/// An engine and its batches so far.
struct Engine {
    /// Whether it stores some blocks again, as an engine that computes them once more.
    repeats: bool,
    dice: SplitMix64,
    held: [u32; CONVERSATIONS],
    batches: Vec<Vec<IndexUpdate>>,
}

const CONVERSATIONS: usize = 12;

impl Engine {
    fn new(seed: u64, repeats: bool) -> Self {
        Self {
            repeats,
            dice: SplitMix64::new(seed),
            held: [0; CONVERSATIONS],
            batches: Vec::new(),
        }
    }

    /// Publishes a batch of a few updates; returns its number.
    fn publish(&mut self) -> usize {
        let count = self.dice.within(1, 4);
        let batch = (0..count).map(|_| self.update()).collect();
        self.batches.push(batch);
        self.batches.len() - 1
    }

    fn update(&mut self) -> IndexUpdate {
        let at = self.dice.below(CONVERSATIONS);
        let number = u32::try_from(at).unwrap() + 1;
        let held = self.held[at];
        if self.dice.chance(1) {
            self.held = [0; CONVERSATIONS];
            return IndexUpdate::Cleared;
        }
        if held > 0 && (held > 80 || self.dice.chance(45)) {
            let left = held - u32::try_from(self.dice.within(1, held as usize)).unwrap();
            self.held[at] = left;
            return remove(number, left..held);
        }
        if self.repeats && held > 1 && self.dice.chance(30) {
            return store(number, held - 1..held, Tier::Device);
        }
        let more = held + u32::try_from(self.dice.within(1, 9)).unwrap();
        self.held[at] = more;
        store(number, held..more, Tier::Device)
    }
}

/// Applies batches to an index, one update at a time, and records the position after each.
struct Follower {
    worker: u32,
    /// Updates left of the batch that is being applied.
    rest: Vec<IndexUpdate>,
    next: usize,
}

impl Follower {
    fn step(&mut self, index: &KvIndex, engine: &mut Engine) {
        if self.rest.is_empty() {
            self.next = engine.publish();
            self.rest.clone_from(&engine.batches[self.next]);
            self.rest.reverse();
        }
        if let Some(update) = self.rest.pop() {
            index.apply(target(self.worker), &update);
        }
        if self.rest.is_empty() {
            index.note_position(target(self.worker), Some(position(self.next)));
        }
    }
}

/// Continues a stream as its sequencer does: with the batches behind the position.
fn resume(index: &KvIndex, worker: u32, batches: &[Vec<IndexUpdate>]) {
    let Some(at) = index.resume_position(target(worker)) else {
        // Nothing was proven, so nothing is known of what the engine holds.
        index.clear(target(worker));
        return;
    };
    let first = usize::try_from(at.seq).unwrap() + 1;
    for (number, batch) in batches.iter().enumerate().skip(first) {
        for update in batch {
            index.apply(target(worker), update);
        }
        index.note_position(target(worker), Some(position(number)));
    }
    index.confirm(target(worker));
}

fn held_blocks(index: &KvIndex, worker: u32) -> BTreeSet<u64> {
    let mut cursor = DumpCursor::default();
    let pieces = std::iter::from_fn(|| index.dump(&mut cursor));
    let of = pieces.flatten().filter(|row| row.target == target(worker));
    of.map(|row| row.hash.0).collect()
}

/// Whatever events come while an index is saved, a process that loads it and replays what follows
/// knows what a process that took every event knows.
#[test]
fn a_restored_index_that_replays_from_its_positions_equals_one_that_took_every_event() {
    let mut resumed = 0;
    for seed in 0..150 {
        let index = registered(3);
        let mut engines: Vec<Engine> = (0..3)
            .map(|worker| Engine::new(seed * 10 + worker, seed % 2 == 1))
            .collect();
        let mut followers: Vec<Follower> = (0..3)
            .map(|worker| Follower {
                worker,
                rest: Vec::new(),
                next: 0,
            })
            .collect();
        let mut dice = SplitMix64::new(seed);
        let mut steps = |count: usize| {
            for _ in 0..count {
                let at = dice.below(3);
                followers[at].step(&index, &mut engines[at]);
            }
        };
        steps(150);
        let mut file = Vec::new();
        let saved = index.save_in_pieces(&mut file, 200, &mut || steps(2));
        saved.unwrap();
        steps(60);
        let (restored, _) = restored(&file);
        for follower in &mut followers {
            let engine = &mut engines[follower.worker as usize];
            while !follower.rest.is_empty() {
                follower.step(&index, engine);
            }
            let known = restored.resume_position(target(follower.worker)).is_some();
            resume(&restored, follower.worker, &engine.batches);
            let (truth, found) = (
                held_blocks(&index, follower.worker),
                held_blocks(&restored, follower.worker),
            );
            assert!(found.is_subset(&truth), "seed {seed}: a block too many");
            if known {
                assert_eq!(found, truth, "seed {seed}: worker {}", follower.worker);
                resumed += 1;
            }
        }
    }
    assert!(resumed > 300, "{resumed}");
}
