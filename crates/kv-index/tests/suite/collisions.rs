//! Prompts that are made to collide: 64-bit FNV-1a can be inverted, so anybody who knows a prompt can
//! write another one with the same hashes.

use std::sync::Arc;

use contract_id::contract;
use kv_blocks::{EngineHash, HashScheme, Namespace, SequenceHash, StoredBlocks, Tier};
use kv_index::{IndexSettings, KvIndex};

use crate::sequence::*;

/// Two blocks of tokens with the same FNV-1a hash: the first two tokens of `FORGED` are free, the
/// other two are computed from the hash of `PROMPT`.
const PROMPT: [u32; 4] = [1, 2, 3, 4];
const FORGED: [u32; 4] = [9, 0, 4_572_915, 2_141_070_562];
/// Continues both.
const NEXT: [u32; 4] = [5, 6, 7, 8];

fn chain_of(scheme: HashScheme, blocks: &[[u32; 4]]) -> Vec<SequenceHash> {
    scheme.chain(None, &blocks.concat(), size())
}

fn index_with(scheme: HashScheme) -> KvIndex {
    index_of(IndexSettings {
        scheme,
        // As at a start: the table of blocks is keyed with it.
        secret: 0x5eed,
        ..IndexSettings::default()
    })
}

/// Stores a block as the first of a sequence, under an engine hash of its own.
fn store_block(index: &KvIndex, worker: u32, name: u64, tokens: [u32; 4], salt: Option<&str>) {
    let stored = StoredBlocks {
        hashes: vec![EngineHash(name)],
        tokens: tokens.to_vec(),
        salt: salt.map(Arc::from),
        ..store(0..1)
    };
    put(index, worker, stored);
}

/// Returns the workers that hold blocks of the prompt, with their number.
fn holders(index: &KvIndex, namespace: &Namespace, chain: &[SequenceHash]) -> Vec<(u32, u32)> {
    let overlaps = index.lookup(namespace, chain, NOW);
    let mut holders: Vec<_> = overlaps
        .iter()
        .map(|overlap| (overlap.target.worker.0, overlap.blocks.total()))
        .collect();
    holders.sort_unstable();
    holders
}

#[test]
#[contract("S58")]
fn a_forged_prompt_has_the_hashes_of_another_under_fnv_and_none_under_the_default() {
    let [own, forged] = [[PROMPT, NEXT], [FORGED, NEXT]];
    let fnv = |blocks: &[_]| chain_of(HashScheme::Fnv1a, blocks);
    assert_eq!(fnv(&own), fnv(&forged));
    let default = |blocks: &[_]| chain_of(HashScheme::default(), blocks);
    assert!(
        default(&own)
            .iter()
            .all(|hash| !default(&forged).contains(hash))
    );
    let index = index_with(HashScheme::default());
    store_block(&index, 0, 1, PROMPT, None);
    assert_eq!(holders(&index, &plain(), &default(&own)), [(0, 1)]);
    assert_eq!(holders(&index, &plain(), &default(&forged)), []);
}

#[test]
#[contract("S58")]
fn a_collision_sends_a_prompt_to_the_wrong_worker_and_damages_nothing() {
    let index = index_with(HashScheme::Fnv1a);
    let forged = chain_of(HashScheme::Fnv1a, &[FORGED, NEXT]);
    store_block(&index, 0, 1, PROMPT, None);
    // Worker 0 gets the credit for a block that it does not hold: at most the prompt's own blocks.
    assert_eq!(holders(&index, &plain(), &forged), [(0, 1)]);
    // The worker that does hold it is known beside it.
    store_block(&index, 1, 2, FORGED, None);
    assert_eq!(holders(&index, &plain(), &forged), [(0, 1), (1, 1)]);
    // What each engine removes is its own, by its own names.
    index.apply(target(1), &remove(&[1], Tier::Device));
    assert_eq!(holders(&index, &plain(), &forged), [(0, 1), (1, 1)]);
    index.apply(target(0), &remove(&[1], Tier::Device));
    assert_eq!(holders(&index, &plain(), &forged), [(1, 1)]);
    index.apply(target(1), &remove(&[2], Tier::Device));
    assert_eq!(holders(&index, &plain(), &forged), []);
    assert_eq!(index.stats().distinct, 0);
}

#[test]
#[contract("S58", "S53")]
fn a_collision_does_not_reach_into_the_namespace_of_another_tenant() {
    let index = index_with(HashScheme::Fnv1a);
    let forged = chain_of(HashScheme::Fnv1a, &[FORGED]);
    store_block(&index, 0, 1, PROMPT, Some("salt-of-a"));
    assert_eq!(
        holders(&index, &salted("salt-of-a"), &forged),
        [(0, 1)],
        "the control"
    );
    for other in [salted("salt-of-b"), plain()] {
        assert_eq!(holders(&index, &other, &forged), []);
    }
}
