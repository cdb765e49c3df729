//! A loaded snapshot has exactly the saved content.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, IndexUpdate, Moment, Namespace, PromptIdentity,
    RemovedBlocks, SequenceHash, StoredBlocks, Target, Tier, WorkerId,
};
use kv_index::{IndexSettings, KvIndex, LoadSummary, SnapshotError, TierBlocks, UpdateOutcome};

use crate::oracle::{setup::Setup, trial::Trial, whole};

const NOW: Moment = Moment::START;

fn target(worker: u32) -> Target {
    Target {
        worker: WorkerId(worker),
        rank: DpRank(0),
    }
}

fn size() -> BlockSize {
    BlockSize::new(2).unwrap()
}

fn namespace() -> Namespace {
    Namespace {
        model: Arc::from("m"),
        lora: None,
        salt: None,
        block_size: size(),
        identity: PromptIdentity::Tokens,
    }
}

/// Tokens of blocks of the conversation with this number.
fn tokens(conversation: u32, blocks: std::ops::Range<u32>) -> Vec<u32> {
    blocks.flat_map(|block| [conversation, block]).collect()
}

fn chain(conversation: u32, blocks: u32) -> Vec<SequenceHash> {
    HashScheme::default().chain(None, &tokens(conversation, 0..blocks), size())
}

fn name(conversation: u32, block: u32) -> EngineHash {
    EngineHash((u64::from(conversation) << 32) + u64::from(block) + 1)
}

fn store(
    index: &KvIndex,
    worker: u32,
    conversation: u32,
    blocks: std::ops::Range<u32>,
    tier: Tier,
) -> UpdateOutcome {
    let stored = StoredBlocks {
        hashes: blocks
            .clone()
            .map(|block| name(conversation, block))
            .collect(),
        parent: blocks
            .start
            .checked_sub(1)
            .map(|before| name(conversation, before)),
        tokens: tokens(conversation, blocks),
        block_size: size(),
        lora: None,
        media: Vec::new(),
        salt: None,
        tier,
    };
    index.apply(target(worker), &IndexUpdate::Stored(stored))
}

fn remove(
    index: &KvIndex,
    worker: u32,
    conversation: u32,
    blocks: std::ops::Range<u32>,
    tier: Tier,
) -> UpdateOutcome {
    let hashes = blocks.map(|block| name(conversation, block)).collect();
    index.apply(
        target(worker),
        &IndexUpdate::Removed(RemovedBlocks { hashes, tier }),
    )
}

fn empty(memory_budget: u64) -> KvIndex {
    KvIndex::new(IndexSettings {
        memory_budget,
        unconfirmed_ttl: std::time::Duration::ZERO,
        ..IndexSettings::default()
    })
}

fn index() -> KvIndex {
    let index = empty(64 << 20);
    for worker in 0..3 {
        index.register(target(worker), Arc::from("m"));
    }
    index
}

fn saved(index: &KvIndex) -> Vec<u8> {
    let mut file = Vec::new();
    let saved = index.save(&mut file).unwrap();
    assert_eq!(saved.bytes, file.len() as u64);
    file
}

fn load(index: &KvIndex, file: &[u8]) -> LoadSummary {
    index.load(&mut &*file).unwrap()
}

fn reloaded(index: &KvIndex) -> KvIndex {
    let other = empty(64 << 20);
    load(&other, &saved(index));
    other
}

fn resident(index: &KvIndex, worker: u32, conversation: u32, blocks: u32) -> TierBlocks {
    let overlaps = index.lookup(&namespace(), &chain(conversation, blocks), NOW);
    overlaps
        .iter()
        .find(|overlap| overlap.target == target(worker))
        .map_or(TierBlocks::default(), |found| found.blocks)
}

/// Applies steps to an index, saves and loads it, and continues with the loaded one.
fn play_and_move(seed: u64) -> Result<(), String> {
    let setup = Setup::ample(seed);
    let steps = setup.steps(2000);
    let (before, after) = steps.split_at(1000);
    let mut trial = Trial::new(&setup);
    before.iter().try_for_each(|step| trial.play(step))?;
    trial.remove_unsaved();
    let moved = empty(IndexSettings::default().memory_budget);
    let loaded = load(&moved, &saved(&trial.index));
    let (was, is) = (trial.index.stats(), moved.stats());
    assert_eq!(
        (was.distinct, was.memberships, was.namespaces),
        (is.distinct, is.memberships, is.namespaces)
    );
    assert_eq!(
        (loaded.blocks, loaded.memberships, loaded.shed),
        (was.distinct, was.memberships, 0)
    );
    assert_eq!(trial.index.digest(), moved.digest());
    trial.index = Arc::new(moved);
    whole::compare(&mut trial)?;
    after.iter().try_for_each(|step| trial.play(step))?;
    trial.finish()
}

#[test]
fn a_loaded_index_answers_and_continues_as_the_saved_one() {
    for seed in 0..60 {
        play_and_move(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn streams_continue_with_their_engine_hashes_after_a_load() {
    let index = index();
    store(&index, 0, 1, 0..8, Tier::Device);
    store(&index, 1, 1, 0..8, Tier::Device);
    store(&index, 1, 1, 0..4, Tier::Disk);
    let index = reloaded(&index);
    assert_eq!(
        store(&index, 0, 1, 8..10, Tier::Device).applied,
        2,
        "the parent resolves by its hash"
    );
    assert_eq!(remove(&index, 1, 1, 4..8, Tier::Device).applied, 4);
    assert_eq!(
        (
            resident(&index, 0, 1, 12).device,
            resident(&index, 1, 1, 12).device
        ),
        (10, 4)
    );
    assert_eq!(index.blocks_per_tier(target(1)), [4, 0, 4, 0]);
    assert_eq!(
        store(&index, 2, 1, 8..10, Tier::Device).orphans,
        2,
        "it does not resolve for a target that never announced it"
    );
}

#[test]
fn speculative_blocks_are_not_saved_except_in_front_of_held_blocks() {
    let index = index();
    store(&index, 0, 1, 0..6, Tier::Device);
    remove(&index, 0, 1, 0..4, Tier::Device);
    index.predict(
        target(1),
        &namespace(),
        &chain(1, 9),
        NOW,
        Duration::from_secs(60),
    );
    index.predict(
        target(2),
        &namespace(),
        &chain(2, 9),
        NOW,
        Duration::from_secs(60),
    );
    let before = index.stats();
    let index = reloaded(&index);
    let after = index.stats();
    assert_eq!(
        (before.predicted, before.distinct, before.memberships),
        (18, 2, 2)
    );
    assert_eq!(
        (after.predicted, after.distinct, after.memberships),
        (0, 2, 2)
    );
    assert!(index.lookup(&namespace(), &chain(1, 9), NOW).is_empty());
    store(&index, 0, 1, 0..4, Tier::Device);
    assert_eq!(
        resident(&index, 0, 1, 9).device,
        6,
        "the ends have the same parents"
    );
}

#[test]
fn removing_all_workers_frees_all_of_a_loaded_snapshot() {
    let index = index();
    for worker in 0..3 {
        store(
            &index,
            worker,
            1,
            0..8 - 2 * worker,
            Tier::ALL[worker as usize],
        );
    }
    let index = reloaded(&index);
    (0..3).for_each(|worker| index.remove_worker(WorkerId(worker)));
    let stats = index.stats();
    assert_eq!(
        (stats.distinct, stats.memberships, stats.namespaces),
        (0, 0, 0)
    );
    assert_eq!(index.save(&mut io::sink()).unwrap().blocks, 0);
}

#[test]
fn a_target_that_now_serves_another_model_loads_nothing() {
    let file = {
        let index = index();
        store(&index, 0, 1, 0..8, Tier::Device);
        store(&index, 1, 1, 0..5, Tier::Device);
        saved(&index)
    };
    let index = empty(64 << 20);
    index.register(target(0), Arc::from("other"));
    let loaded = load(&index, &file);
    assert_eq!(
        (
            loaded.targets,
            loaded.blocks,
            loaded.memberships,
            loaded.shed
        ),
        (2, 5, 5, 0)
    );
    assert_eq!(index.blocks_per_tier(target(0)), [0; 4]);
    assert_eq!(resident(&index, 1, 1, 8).device, 5);
    // Blocks without a holder are not kept either: the same blocks are new.
    index.remove_worker(WorkerId(1));
    assert_eq!((index.stats().distinct, index.stats().namespaces), (0, 0));
}

#[test]
fn a_load_over_the_budget_sheds_the_oldest_blocks() {
    let index = index();
    for conversation in 0..2000 {
        store(&index, 0, conversation, 0..50, Tier::Device);
    }
    // Used again, so it is recent.
    store(&index, 0, 3, 0..50, Tier::Device);
    let (all, file) = (index.stats().distinct, saved(&index));
    let small = empty(3 << 20);
    let loaded = load(&small, &file);
    let stats = small.stats();
    assert!(stats.bytes <= stats.budget_bytes, "{stats:?}");
    assert!(loaded.blocks > 10_000, "{loaded:?}");
    assert_eq!(
        (loaded.blocks + loaded.shed, stats.shed),
        (all, loaded.shed)
    );
    assert_eq!(
        (
            resident(&small, 0, 3, 50).device,
            resident(&small, 0, 1999, 50).device
        ),
        (50, 50)
    );
    assert_eq!(resident(&small, 0, 4, 50).device, 0);
    // The loaded index behaves as any other: new blocks displace old ones.
    assert_eq!(store(&small, 0, 2001, 0..50, Tier::Device).applied, 50);
}

#[test]
fn only_an_index_without_blocks_loads_a_snapshot() {
    let index = index();
    store(&index, 0, 1, 0..3, Tier::Device);
    let (file, digest) = (saved(&index), index.digest());
    let error = index.load(&mut &file[..]).unwrap_err();
    assert!(
        matches!(error, SnapshotError::NotEmpty { blocks: 3 }),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("an index of 3 blocks, expected none"),
        "{error}"
    );
    assert_eq!(index.digest(), digest);
}

#[test]
fn a_refused_snapshot_leaves_an_empty_usable_index() {
    let file = {
        let index = index();
        store(&index, 0, 1, 0..3, Tier::Device);
        saved(&index)
    };
    let index = index();
    let mut damaged = file.clone();
    damaged[file.len() / 2] ^= 1;
    assert!(matches!(
        index.load(&mut &damaged[..]),
        Err(SnapshotError::Damaged { .. })
    ));
    let fnv = KvIndex::new(IndexSettings {
        scheme: HashScheme::Fnv1a,
        ..IndexSettings::default()
    });
    assert!(matches!(
        fnv.load(&mut &file[..]),
        Err(SnapshotError::Scheme { .. })
    ));
    assert_eq!(index.stats().distinct, 0);
    assert_eq!(load(&index, &file).blocks, 3);
}

#[test]
fn a_failed_write_of_a_snapshot_is_an_error() {
    struct FullDisk;

    impl Write for FullDisk {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    assert_eq!(
        index().save(&mut FullDisk).unwrap_err().kind(),
        io::ErrorKind::StorageFull
    );
}
