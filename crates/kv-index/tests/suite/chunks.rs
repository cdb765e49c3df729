//! Chunks of stores such as LMCache: credited as blocks of the target's own size, 4 tokens here.

use std::{ops::Range, sync::Arc};

use contract_id::contract;
use kv_blocks::{BlockSize, EngineHash, IndexUpdate, MediaHash, Namespace, StoredBlocks, Tier};
use kv_index::{IndexSettings, KvIndex, TierBlocks};

use crate::sequence::*;

/// Returns the tokens `part` of the sequence as one chunk in host memory.
fn chunk(part: Range<u32>, name: u64, parent: Option<u64>) -> StoredBlocks {
    StoredBlocks {
        hashes: vec![EngineHash(name)],
        parent: parent.map(EngineHash),
        block_size: BlockSize::new(u64::from(part.end - part.start)).unwrap(),
        tokens: part.collect(),
        lora: None,
        media: Vec::new(),
        salt: None,
        tier: Tier::Host,
    }
}

/// Returns an index that knows the block size of worker 0.
fn index_with_known_size(settings: IndexSettings) -> KvIndex {
    let index = index_of(settings);
    index.expect_block_size(target(0), size());
    index
}

fn known() -> KvIndex {
    index_with_known_size(IndexSettings::default())
}

fn host(index: &KvIndex, blocks: u32) -> u32 {
    resident(index, 0, &plain(), blocks).host
}

#[test]
#[contract("V17", "V47")]
fn chunks_are_credited_as_the_same_tokens_in_the_targets_own_blocks() {
    let own = index();
    put(
        &own,
        0,
        StoredBlocks {
            tier: Tier::Host,
            ..store(0..8)
        },
    );
    put(&own, 0, store(0..2));
    let chunks = index();
    // The device shows the size of the blocks.
    put(&chunks, 0, store(0..2));
    assert_eq!(put(&chunks, 0, chunk(0..16, 900, None)).applied, 1);
    assert_eq!(put(&chunks, 0, chunk(16..32, 901, Some(900))).applied, 1);
    let overlaps = |index: &KvIndex| index.lookup(&plain(), &chain(8), NOW);
    assert_eq!(overlaps(&chunks), overlaps(&own));
    assert_eq!(overlaps(&chunks)[0].present, [2, 8, 0, 0]);
    assert_eq!(
        resident(&chunks, 0, &plain(), 8),
        TierBlocks {
            device: 2,
            host: 6,
            ..TierBlocks::default()
        }
    );
}

#[test]
#[contract("D2", "V17")]
fn a_chunk_with_a_multimodal_item_is_not_cut_into_blocks() {
    let index = known();
    let two = StoredBlocks {
        hashes: vec![EngineHash(900), EngineHash(901)],
        media: vec![None, MediaHash::of([("image", 2)])],
        block_size: BlockSize::new(8).unwrap(),
        ..chunk(0..16, 0, None)
    };
    assert_eq!(put(&index, 0, two).applied, 1);
    assert_eq!(host(&index, 8), 2, "those of the first chunk");
}

#[test]
#[contract("V17")]
fn a_block_belongs_to_the_chunk_in_which_it_ends() {
    // Chunks of 6 tokens: the second block ends in the second chunk.
    let fill = || {
        let index = known();
        put(&index, 0, chunk(0..6, 900, None));
        assert_eq!(host(&index, 8), 1);
        put(&index, 0, chunk(6..12, 901, Some(900)));
        assert_eq!(host(&index, 8), 3);
        // Shorter than a block, and without the end of one.
        put(&index, 0, chunk(12..14, 902, Some(901)));
        assert_eq!(host(&index, 8), 3);
        put(&index, 0, chunk(14..17, 903, Some(902)));
        assert_eq!(host(&index, 8), 4);
        index
    };
    let blocks_without = |name: u64| {
        let index = fill();
        index.apply(target(0), &remove(&[name], Tier::Host));
        (index.blocks_per_tier(target(0))[1], host(&index, 8))
    };
    assert_eq!(blocks_without(900), (3, 0));
    assert_eq!(blocks_without(901), (2, 1));
    assert_eq!(blocks_without(902), (4, 4));
    assert_eq!(blocks_without(903), (3, 3));
}

#[test]
#[contract("V17", "MC12")]
fn a_chunk_behind_an_unknown_chunk_waits_for_it() {
    let index = known();
    let outcome = put(&index, 0, chunk(8..16, 901, Some(900)));
    assert_eq!((outcome.applied, outcome.orphans), (0, 1));
    // Of another length, as the last chunk of a prompt is.
    put(&index, 0, chunk(16..20, 902, Some(901)));
    assert_eq!(index.stats().memberships, 0, "never taken for a beginning");
    put(&index, 0, chunk(0..8, 900, None));
    assert_eq!(host(&index, 8), 5);
    // A waiting chunk can be removed, and those behind it wait on.
    let index = known();
    put(&index, 0, chunk(8..16, 901, Some(900)));
    put(&index, 0, chunk(16..20, 902, Some(901)));
    index.apply(target(0), &remove(&[901], Tier::Host));
    put(&index, 0, chunk(0..8, 900, None));
    assert_eq!(host(&index, 8), 2);
}

#[test]
#[contract("V17", "V12")]
fn a_removed_chunk_leaves_its_own_tier_only() {
    let index = known();
    put(&index, 0, store(0..4));
    put(&index, 0, chunk(0..16, 900, None));
    let on_disk = StoredBlocks {
        tier: Tier::Disk,
        ..chunk(0..16, 900, None)
    };
    put(&index, 0, on_disk);
    assert_eq!(index.blocks_per_tier(target(0)), [4, 4, 4, 0]);
    index.apply(target(0), &remove(&[900], Tier::Host));
    assert_eq!(index.blocks_per_tier(target(0)), [4, 0, 4, 0]);
    index.apply(target(0), &remove(&[1, 2, 3, 4], Tier::Device));
    assert_eq!(resident(&index, 0, &plain(), 4).disk, 4);
}

#[test]
#[contract("V17")]
fn repeated_chunks_count_once_and_overlapping_ones_for_each() {
    let index = known();
    for _ in 0..3 {
        put(&index, 0, chunk(0..16, 900, None));
    }
    index.apply(target(0), &remove(&[900], Tier::Host));
    assert_eq!(index.stats().memberships, 0);
    // The end of a prompt cut this chunk short; a longer prompt brings the full one.
    put(&index, 0, chunk(0..8, 910, None));
    put(&index, 0, chunk(0..16, 900, None));
    index.apply(target(0), &remove(&[910], Tier::Host));
    assert_eq!(host(&index, 8), 4);
    index.apply(target(0), &remove(&[900], Tier::Host));
    assert_eq!(index.stats().memberships, 0);
}

#[test]
#[contract("V17", "V47")]
fn a_chunk_with_another_content_replaces_the_one_of_its_name() {
    let index = known();
    put(&index, 0, chunk(0..8, 900, None));
    put(&index, 0, chunk(100..108, 900, None));
    assert_eq!((host(&index, 2), index.stats().memberships), (0, 2));
}

#[test]
#[contract("V17", "F63", "S54")]
fn a_chunk_of_an_adapter_or_a_salt_is_not_credited_to_other_prompts() {
    let index = known();
    let with = |lora: Option<&str>, salt: Option<&str>, chunk: StoredBlocks| StoredBlocks {
        lora: lora.map(Arc::from),
        media: Vec::new(),
        salt: salt.map(Arc::from),
        ..chunk
    };
    put(&index, 0, with(None, Some("a"), chunk(0..8, 900, None)));
    put(&index, 0, chunk(8..16, 901, Some(900)));
    assert_eq!(host(&index, 4), 0);
    assert_eq!(resident(&index, 0, &salted("a"), 4).host, 4);
    put(&index, 0, with(Some("l"), None, chunk(0..8, 910, None)));
    let adapter = Namespace {
        lora: Some("l".into()),
        ..plain()
    };
    assert_eq!(resident(&index, 0, &adapter, 4).host, 2);
    assert_eq!(host(&index, 4), 0);
    // A chunk inherits both, and one that contradicts its parent is refused.
    let other = with(None, Some("b"), chunk(16..24, 902, Some(901)));
    assert_eq!(put(&index, 0, other).orphans, 1);
    assert_eq!(resident(&index, 0, &salted("a"), 8).host, 4);
    assert_eq!(resident(&index, 0, &salted("b"), 8).host, 0);
}

#[test]
#[contract("V12", "V17")]
fn a_clear_of_the_device_keeps_chunks_and_other_clears_drop_them() {
    let index = known();
    put(&index, 0, store(0..4));
    put(&index, 0, chunk(0..16, 900, None));
    index.apply(target(0), &IndexUpdate::Cleared);
    assert_eq!(index.blocks_per_tier(target(0)), [0, 4, 0, 0]);
    index.apply(target(0), &IndexUpdate::ClearedTier(Tier::Host));
    assert_eq!(index.stats().memberships, 0);
    // The chunk is gone: one behind it waits.
    assert_eq!(put(&index, 0, chunk(16..32, 901, Some(900))).orphans, 1);
    put(&index, 0, chunk(0..16, 900, None));
    assert_eq!(host(&index, 8), 8);
    index.clear(target(0));
    assert_eq!(put(&index, 0, chunk(32..48, 902, Some(901))).orphans, 1);
    assert_eq!(index.stats().memberships, 0);
    // The size of the blocks is still known.
    put(&index, 0, chunk(0..16, 900, None));
    assert_eq!(host(&index, 8), 4);
}

#[test]
#[contract("V17")]
fn without_a_known_block_size_chunks_keep_their_own() {
    let index = index();
    put(&index, 0, chunk(0..16, 900, None));
    assert_eq!(host(&index, 4), 0);
    assert_eq!(index.blocks_per_tier(target(0)), [0, 1, 0, 0]);
    put(&index, 0, store(0..1));
    put(&index, 0, chunk(0..16, 900, None));
    assert_eq!(resident(&index, 0, &plain(), 4).host, 3);
}

#[test]
#[contract("V17")]
fn a_chunk_as_long_as_a_block_and_one_behind_a_block_are_placed_like_others() {
    let index = known();
    // The short last chunk of a prompt has the size of a block, and waits for its parent.
    put(&index, 0, chunk(8..12, 901, Some(900)));
    assert_eq!(index.stats().memberships, 0);
    put(&index, 0, chunk(0..8, 900, None));
    put(&index, 0, chunk(12..16, 902, Some(901)));
    assert_eq!(host(&index, 8), 4);
    // A chunk may name one of the target's own blocks as its parent, known or still unknown.
    put(&index, 1, store(0..1));
    put(&index, 1, chunk(12..20, 910, Some(3)));
    put(&index, 1, store(1..3));
    put(&index, 1, chunk(20..28, 911, Some(910)));
    let held = resident(&index, 1, &plain(), 8);
    assert_eq!((held.device, held.host), (3, 4));
}

/// A publisher cannot make the index exceed its budget, nor leave blocks whose removal is unknown.
#[test]
#[contract("V17")]
fn a_million_tokens_in_chunks_stay_within_the_memory_budget() {
    for chunk_size in [1, 2, 3, 256, 50_000] {
        let budget = 4 << 20;
        let index = index_with_known_size(IndexSettings {
            memory_budget: budget,
            ..IndexSettings::default()
        });
        let chunks = 1_000_000 / chunk_size;
        let many = StoredBlocks {
            hashes: (0..u64::from(chunks)).map(|n| EngineHash(n + 1)).collect(),
            tokens: (0..chunks * chunk_size).collect(),
            block_size: BlockSize::new(chunk_size.into()).unwrap(),
            ..chunk(0..4, 1, None)
        };
        put(&index, 0, many);
        let stats = index.stats();
        assert!(stats.bytes <= budget, "{} bytes", stats.bytes);
        assert!(stats.memberships > 0, "chunks of {chunk_size}");
        let names: Vec<u64> = (1..=u64::from(chunks)).collect();
        index.apply(target(0), &remove(&names, Tier::Host));
        assert_eq!(index.stats().memberships, 0, "chunks of {chunk_size}");
    }
}
