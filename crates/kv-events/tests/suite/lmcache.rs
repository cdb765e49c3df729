//! LMCache beside vLLM on one stream: its chunks count as the engine's blocks, and its duplicate
//! announcements are harmless.

use std::{fs, path::PathBuf, sync::Arc};

use contract_id::contract;
use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, IndexUpdate, Moment, Namespace, PromptIdentity,
    RemovedBlocks, StoredBlocks, Target, Tier, WorkerId,
};
use kv_events::vllm::{Normaliser, VllmEvent, decode};
use kv_index::{IndexSettings, KvIndex, Overlap};

const TARGETS: [Target; 2] = [
    Target {
        worker: WorkerId(1),
        rank: DpRank(0),
    },
    Target {
        worker: WorkerId(2),
        rank: DpRank(0),
    },
];

fn events(file: &str) -> Vec<VllmEvent> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kv_events");
    decode(&fs::read(folder.join(file)).unwrap())
        .unwrap()
        .events
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

fn index() -> KvIndex {
    let index = KvIndex::new(IndexSettings {
        memory_budget: 8 << 20,
        ..IndexSettings::default()
    });
    for target in TARGETS {
        index.register(target, Arc::from("m"));
    }
    index
}

fn apply(index: &KvIndex, events: &[VllmEvent]) {
    for target in TARGETS {
        let mut normaliser = Normaliser::default();
        for event in events {
            if let Ok(update) = normaliser.update(event) {
                index.apply(target, &update);
            }
        }
    }
}

/// Looks up the prompt 1..=256 in blocks of `size` tokens.
fn found(index: &KvIndex, size: u64) -> Vec<Overlap> {
    let block_size = BlockSize::new(size).unwrap();
    let namespace = Namespace {
        model: "m".into(),
        lora: None,
        salt: None,
        block_size,
        identity: PromptIdentity::Tokens,
    };
    let tokens: Vec<u32> = (1..=256).collect();
    index.lookup(
        &namespace,
        &HashScheme::default().chain(None, &tokens, block_size),
        Moment::START,
    )
}

/// Stores the prompt 1..=256 in blocks of 16 tokens in host memory, as an engine would announce them
/// itself.
fn own_events(index: &KvIndex) {
    for target in TARGETS {
        let stored = StoredBlocks {
            hashes: (1..=16).map(EngineHash).collect(),
            parent: None,
            tokens: (1..=256).collect(),
            block_size: BlockSize::new(16).unwrap(),
            lora: None,
            media: Vec::new(),
            salt: None,
            tier: Tier::Host,
        };
        index.apply(target, &IndexUpdate::Stored(stored));
    }
}

#[test]
#[contract("V17", "V47")]
fn chunks_give_the_same_credit_as_the_engines_own_events() {
    let device = events("vllm_0_24_stored_root_map.msgpack");
    let own = index();
    apply(&own, &device);
    own_events(&own);
    let with_chunks = index();
    // Also repeated: duplicates change nothing.
    for _ in 0..3 {
        apply(&with_chunks, &device);
        apply(&with_chunks, &events("lmcache_stored_cpu.msgpack"));
        assert_eq!(found(&with_chunks, 16), found(&own, 16));
    }
    for overlap in found(&with_chunks, 16) {
        assert_eq!((overlap.blocks.device, overlap.blocks.host), (4, 12));
        assert_eq!(overlap.present, [4, 16, 0, 0]);
    }
    assert_eq!(found(&with_chunks, 256), [], "no block of the chunk's size");
}

#[test]
#[contract("V47")]
fn a_chunk_with_the_hash_of_an_engine_block_does_not_prevent_its_removal() {
    let [VllmEvent::Stored(block)] = &events("vllm_0_24_stored_root_map.msgpack")[..] else {
        panic!("no store")
    };
    let chunk = events("lmcache_stored_cpu.msgpack");
    let [VllmEvent::Stored(as_chunk)] = &chunk[..] else {
        panic!("no store")
    };
    assert_eq!(
        block.block_hashes[3], as_chunk.block_hashes[0],
        "the same digest, from the same seed"
    );
    let index = index();
    apply(&index, &events("vllm_0_24_stored_root_map.msgpack"));
    apply(&index, &chunk);
    let removed = RemovedBlocks {
        hashes: vec![block.block_hashes[3]],
        tier: Tier::Device,
    };
    index.apply(TARGETS[0], &IndexUpdate::Removed(removed));
    let present = |size| {
        found(&index, size)
            .iter()
            .map(|found| found.present)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        present(16),
        [[3, 16, 0, 0], [4, 16, 0, 0]],
        "the chunk is still in host memory"
    );
}
