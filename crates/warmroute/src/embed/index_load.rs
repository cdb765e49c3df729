//! The content of another index, in the form of `dump_events`. Source: contract DY33.
//!
//! A dump has no position in the engines' events: a block of it may have been removed since. So its
//! blocks are loaded as predictions, which end by themselves unless an event confirms them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use admin::AdminParts;
use api::KvIndexDumpRow;
use fleet::Snapshot;
use kv_blocks::{Moment, Namespace, PromptIdentity, SequenceHash, Target};
use kv_index::KvIndex;

/// The blocks of one target and namespace, each with the block in front of it.
type Parents = HashMap<SequenceHash, Option<SequenceHash>>;

/// Blocks behind each other, with no other block behind any but the last.
struct Stretch {
    /// The block in front of the first one.
    parent: Option<SequenceHash>,
    blocks: Vec<SequenceHash>,
}

/// Predicts the blocks of a dump for `ttl`, and returns their number. Left out are those of workers
/// that are not here, or with another block size, those with a salt, which a dump does not tell, and
/// those for which there is no room. Takes the index's lock for each stretch: call it off the async
/// threads.
///
/// # Errors
///
/// The text is no dump; nothing was loaded.
pub(super) fn load(parts: &AdminParts, text: &str, ttl: Duration) -> Result<usize, String> {
    let snapshot = parts.fleet.snapshot();
    let mut blocks: HashMap<(Target, Namespace), Parents> = HashMap::new();
    for row in KvIndexDumpRow::read_all(text)? {
        let parent = row.parent.as_deref().map(hash).transpose()?;
        let block = hash(&row.hash)?;
        if let Some(place) = place(&snapshot, &row) {
            blocks.entry(place).or_default().insert(block, parent);
        }
    }
    let (now, index) = (parts.clock.now(), &parts.kv_index.index);
    let mut room = usize::try_from(index.prediction_room()).unwrap_or(usize::MAX);
    let mut loaded = 0;
    for (place, parents) in &blocks {
        let stretches = within(stretches(parents), room);
        let predicted = predict(index, place, &stretches, (now, ttl));
        room -= predicted;
        loaded += predicted;
    }
    Ok(loaded)
}

/// Predicts stretches for some time, and returns the number of their blocks.
fn predict(
    index: &KvIndex,
    (target, namespace): &(Target, Namespace),
    stretches: &[Stretch],
    (now, ttl): (Moment, Duration),
) -> usize {
    let predict = |stretch: &Stretch| {
        let chain = (stretch.parent, &stretch.blocks[..]);
        index.predict_after(*target, namespace, chain, now, ttl);
    };
    stretches.iter().for_each(predict);
    // The least recently used predictions go first: beginnings have to be used after their ends.
    stretches.iter().rev().for_each(predict);
    stretches.iter().map(|stretch| stretch.blocks.len()).sum()
}

fn hash(text: &str) -> Result<SequenceHash, String> {
    Some(text)
        .filter(|text| text.len() == 16)
        .and_then(|text| u64::from_str_radix(text, 16).ok())
        .map(SequenceHash)
        .ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            format!("text has a hash {shown:?}: expected 16 hex digits")
        })
}

/// Returns the place of a row's block here.
fn place(snapshot: &Snapshot, row: &KvIndexDumpRow) -> Option<(Target, Namespace)> {
    let worker = snapshot.worker_named(row.worker.as_deref()?)?;
    let mut targets = worker.targets();
    let target = targets.find(|target| target.rank.0 == row.dp_rank)?;
    let block_size = worker.cache.block_size;
    if row.salt.is_some() || row.block_size != block_size.tokens() {
        return None;
    }
    let namespace = Namespace {
        model: Arc::clone(&row.model),
        lora: row.lora.clone(),
        salt: None,
        block_size,
        identity: PromptIdentity::Tokens,
    };
    Some((target, namespace))
}

/// Returns the stretches of all chains, each behind that with its parent. A block whose beginning is
/// missing, or that is in a ring, is in none.
fn stretches(parents: &Parents) -> Vec<Stretch> {
    let mut followers: HashMap<Option<SequenceHash>, Vec<SequenceHash>> = HashMap::new();
    for (block, parent) in parents {
        followers.entry(*parent).or_default().push(*block);
    }
    let mut stretches = Vec::new();
    // Not a recursion, since a chain may have very many forks.
    let mut parents_left: Vec<Option<SequenceHash>> = vec![None];
    while let Some(parent) = parents_left.pop() {
        for first in followers.remove(&parent).unwrap_or_default() {
            let stretch = stretch(&mut followers, parent, first);
            parents_left.push(stretch.blocks.last().copied());
            stretches.push(stretch);
        }
    }
    stretches
}

/// Takes the stretch that begins with `first` out of the blocks that are left.
fn stretch(
    followers: &mut HashMap<Option<SequenceHash>, Vec<SequenceHash>>,
    parent: Option<SequenceHash>,
    first: SequenceHash,
) -> Stretch {
    let mut blocks = vec![first];
    let mut last = Some(first);
    while let Some([only]) = followers.get(&last).map(Vec::as_slice) {
        let only = *only;
        followers.remove(&last);
        blocks.push(only);
        last = Some(only);
    }
    Stretch { parent, blocks }
}

/// Returns the first `room` blocks of stretches.
fn within(mut stretches: Vec<Stretch>, mut room: usize) -> Vec<Stretch> {
    for stretch in &mut stretches {
        stretch.blocks.truncate(room);
        room -= stretch.blocks.len();
    }
    stretches.retain(|stretch| !stretch.blocks.is_empty());
    stretches
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use kv_blocks::{BlockSize, DpRank, WorkerId};
    use kv_index::IndexSettings;

    use super::*;

    fn parents(blocks: &[(u64, Option<u64>)]) -> Parents {
        let blocks = blocks.iter();
        blocks
            .map(|(block, parent)| (SequenceHash(*block), parent.map(SequenceHash)))
            .collect()
    }

    /// Returns the parent and the blocks of each stretch, sorted.
    fn found(stretches: &[Stretch]) -> Vec<(Option<u64>, Vec<u64>)> {
        let stretches = stretches.iter();
        let mut found: Vec<(Option<u64>, Vec<u64>)> = stretches
            .map(|stretch| {
                let blocks = stretch.blocks.iter().map(|block| block.0).collect();
                (stretch.parent.map(|parent| parent.0), blocks)
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn each_block_with_a_beginning_is_in_one_stretch_behind_its_parent() {
        let tree = parents(&[
            (1, None),
            (2, Some(1)),
            (3, Some(2)),
            (4, Some(3)),
            (5, Some(2)),
            (9, None),
        ]);
        let stretches = stretches(&tree);
        let expected = [
            (None, vec![1, 2]),
            (None, vec![9]),
            (Some(2), vec![3, 4]),
            (Some(2), vec![5]),
        ];
        assert_eq!(found(&stretches), expected);
        let mut known = vec![None];
        for stretch in stretches {
            assert!(known.contains(&stretch.parent), "its parent comes first");
            known.extend(stretch.blocks.into_iter().map(Some));
        }
    }

    #[test]
    fn blocks_without_a_beginning_are_in_no_stretch() {
        for blocks in [
            &[(2, Some(1)), (3, Some(2))][..],
            &[(1, Some(2)), (2, Some(1))],
            &[(1, Some(1))],
            &[(1, Some(2)), (2, Some(1)), (3, Some(2))],
        ] {
            assert!(stretches(&parents(blocks)).is_empty(), "{blocks:?}");
        }
    }

    /// Returns a chain of `length` blocks with `leaves` blocks behind its last one.
    fn comb(length: u64, leaves: u64) -> Parents {
        let chain = (0..length).map(|block| (block, block.checked_sub(1)));
        let leaves = (length..length + leaves).map(|leaf| (leaf, Some(length - 1)));
        parents(&chain.chain(leaves).collect::<Vec<_>>())
    }

    #[test]
    #[contract("DY33")]
    fn many_leaves_behind_a_long_chain_are_loaded_without_the_chain_for_each() {
        let stretches = stretches(&comb(100_000, 20_000));
        let blocks: usize = stretches.iter().map(|stretch| stretch.blocks.len()).sum();
        assert_eq!((stretches.len(), blocks), (20_001, 120_000));
    }

    #[test]
    fn without_room_for_all_blocks_the_beginnings_are_loaded() {
        let found = |room| found(&within(stretches(&comb(3, 1)), room));
        assert!(found(0).is_empty());
        assert_eq!(found(2), [(None, vec![0, 1])]);
        assert_eq!(found(9), [(None, vec![0, 1, 2, 3])]);
    }

    #[test]
    #[contract("DY33")]
    fn loaded_ends_are_pruned_before_their_beginnings() {
        let index = KvIndex::new(IndexSettings {
            prediction_max_blocks: 10,
            prune_target_ratio: 0.5,
            ..IndexSettings::default()
        });
        let place = |worker| {
            let target = Target {
                worker: WorkerId(worker),
                rank: DpRank(0),
            };
            let namespace = Namespace {
                model: Arc::from("m"),
                lora: None,
                salt: None,
                block_size: BlockSize::new(16).unwrap(),
                identity: PromptIdentity::Tokens,
            };
            (target, namespace)
        };
        let time = (Moment::START, Duration::from_secs(60));
        let (loaded, other) = (place(1), place(2));
        let tree = comb(4, 4);
        assert_eq!(predict(&index, &loaded, &stretches(&tree), time), 8);
        let held = |end: &[u64]| {
            let blocks = (0..4).chain(end.iter().copied());
            let chain: Vec<_> = blocks.map(SequenceHash).collect();
            let overlaps = index.lookup(&loaded.1, &chain, Moment::START);
            overlaps
                .iter()
                .find(|overlap| overlap.target == loaded.0)
                .map_or(0, |overlap| overlap.blocks.total())
        };
        assert_eq!([4, 5, 6, 7].map(|leaf| held(&[leaf])), [5; 4]);
        // Three blocks of another target do not fit: those of the dump that go are its leaves.
        let more = parents(&[(20, None), (21, Some(20)), (22, Some(21))]);
        assert_eq!(predict(&index, &other, &stretches(&more), time), 3);
        assert_eq!(held(&[]), 4);
        assert!(index.stats().predicted <= 10);
    }

    #[test]
    fn a_text_that_is_no_dump_says_so() {
        assert_eq!(KvIndexDumpRow::read_all("[]").map(|rows| rows.len()), Ok(0));
        assert_eq!(
            KvIndexDumpRow::read_all(" \n").map(|rows| rows.len()),
            Ok(0)
        );
        for text in ["[1]", "{}", "[", "text"] {
            let error = KvIndexDumpRow::read_all(text).expect_err(text);
            assert!(error.starts_with("text is no array"), "{error}");
        }
        assert!(hash("0123456789abcdef").is_ok());
        for wrong in ["", "0123456789abcde", "0123456789abcdeg"] {
            assert!(hash(wrong).is_err(), "{wrong}");
        }
    }
}
