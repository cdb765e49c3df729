//! Chunks that are stored, wait and are removed in any order, compared with plain sets.

use std::collections::BTreeSet;

use kv_blocks::{BlockSize, EngineHash, HashScheme, StoredBlocks, Tier};
use proptest::{collection::vec, prelude::*};

use crate::sequence::*;

/// A chunk: the one before it, and its tokens.
type ChunkSpec = (Option<usize>, Vec<u32>);

/// Up to eight chunks in a tree, of one to nine tokens, of which two differ: blocks of 4 tokens end
/// anywhere, and chunks of one parent have beginnings in common.
fn specs() -> impl Strategy<Value = Vec<ChunkSpec>> {
    let spec = (any::<prop::sample::Index>(), vec(1..=2_u32, 1..10));
    vec(spec, 1..9).prop_map(|drawn| {
        let number = |at: usize, before: prop::sample::Index| before.index(at + 1).checked_sub(1);
        let numbered = drawn.into_iter().enumerate();
        let spec = |(at, (before, mut tokens)): (usize, (prop::sample::Index, Vec<u32>))| {
            let before = number(at, before);
            // At the root this would be a block of the target's own size.
            if before.is_none() && tokens.len() == 4 {
                tokens.push(1);
            }
            (before, tokens)
        };
        numbered.map(spec).collect()
    })
}

/// The chunks as plain sets: which are stored and which wait.
#[derive(Default)]
struct ChunkModel {
    stored: BTreeSet<usize>,
    waiting: BTreeSet<usize>,
}

impl ChunkModel {
    fn store(&mut self, specs: &[ChunkSpec], chunk: usize) {
        if specs[chunk]
            .0
            .is_some_and(|parent| !self.stored.contains(&parent))
        {
            self.waiting.insert(chunk);
            return;
        }
        // The index has no place for blocks behind one that left with everything behind it.
        let before = path(specs, specs[chunk].0);
        let before = &before[..before.len() / 4 * 4];
        if !before.is_empty()
            && !self
                .blocks(specs)
                .iter()
                .any(|block| block.starts_with(before))
        {
            return;
        }
        self.stored.insert(chunk);
        for late in 0..specs.len() {
            if specs[late].0 == Some(chunk) && self.waiting.remove(&late) {
                self.store(specs, late);
            }
        }
    }

    fn remove(&mut self, chunk: usize) {
        self.stored.remove(&chunk);
        self.waiting.remove(&chunk);
    }

    /// The blocks that end in a stored chunk, each with everything before it.
    fn blocks(&self, specs: &[ChunkSpec]) -> BTreeSet<Vec<u32>> {
        let ends = |chunk: &usize| {
            let path = path(specs, Some(*chunk));
            let start = path.len() - specs[*chunk].1.len();
            let whole = (start / 4 + 1)..=(path.len() / 4);
            whole
                .map(|block| path[..block * 4].to_vec())
                .collect::<Vec<_>>()
        };
        self.stored.iter().flat_map(ends).collect()
    }
}

/// The tokens of a chunk with everything before it.
fn path(specs: &[ChunkSpec], chunk: Option<usize>) -> Vec<u32> {
    chunk.map_or_else(Vec::new, |chunk| {
        let (parent, tokens) = &specs[chunk];
        [path(specs, *parent), tokens.clone()].concat()
    })
}

proptest! {
    #[test]
    fn chunks_in_any_order_hold_what_plain_sets_hold(
        specs in specs(),
        steps in vec((any::<prop::sample::Index>(), 0..3_u8), 1..40),
    ) {
        let index = index();
        index.expect_block_size(target(0), size());
        let mut model = ChunkModel::default();
        for (chunk, step) in steps {
            let chunk = chunk.index(specs.len());
            let name = |chunk: usize| EngineHash(900 + chunk as u64);
            if step == 0 {
                index.apply(target(0), &remove(&[name(chunk).0], Tier::Host));
                model.remove(chunk);
            } else {
                let (parent, tokens) = &specs[chunk];
                put(&index, 0, StoredBlocks {
                    hashes: vec![name(chunk)],
                    parent: parent.map(name),
                    block_size: BlockSize::new(tokens.len() as u64).unwrap(),
                    tokens: tokens.clone(),
                    lora: None,
                    media: Vec::new(), salt: None,
                    tier: Tier::Host,
                });
                model.store(&specs, chunk);
            }
            let expected = model.blocks(&specs);
            prop_assert_eq!(index.blocks_per_tier(target(0)), [0, expected.len() as u64, 0, 0]);
        }
        for chunk in 0..specs.len() {
            let path = path(&specs, Some(chunk));
            let expected = model.blocks(&specs);
            let count = (1..=path.len() / 4).take_while(|n| expected.contains(&path[..n * 4]));
            let hashes = HashScheme::default().chain(None, &path, size());
            let found = index.lookup(&plain(), &hashes, NOW);
            let found = found.first().map_or(0, |found| found.blocks.host);
            prop_assert_eq!(found as usize, count.count());
        }
    }
}
