//! Compares engine hashes with plain maps, under any order of announcements and removals.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{prelude::*, test_runner::TestCaseError};

use super::*;

type BlockName = (BlockSize, EngineHash);
/// Hashes of a group.
type GroupNames = BTreeMap<BlockName, BlockRef>;

const MEMBERS: u32 = 4;
const RUNS: u32 = 4;
const RUN: u32 = 6;

#[derive(Clone, Debug)]
enum HashStep {
    Announce {
        member: u32,
        names: Vec<EngineHash>,
        block_ref: BlockRef,
    },
    Forget {
        run: u32,
        range: Range<u32>,
    },
    Unname {
        member: u32,
        name: EngineHash,
    },
    Clear {
        member: u32,
    },
    Leave {
        member: u32,
    },
    Join {
        member: u32,
        common: u32,
    },
    Tidy,
}

/// Draws few hashes, so that they collide: numbers, including zero, and long ones. Eight in all,
/// the most that a block may have.
fn name() -> impl Strategy<Value = EngineHash> {
    prop_oneof![(0_u64..4).prop_map(EngineHash), (1_u64..5).prop_map(long)]
}

fn step() -> impl Strategy<Value = HashStep> {
    let member = || 0..MEMBERS;
    let block_ref = (0..RUNS, 0..RUN).prop_map(|(run, at)| BlockRef { run, at });
    let announce = (member(), prop::collection::vec(name(), 1..4), block_ref).prop_map(
        |(member, mut names, block_ref)| {
            names.truncate((RUN - block_ref.at) as usize);
            HashStep::Announce {
                member,
                names,
                block_ref,
            }
        },
    );
    // Content with a content hash: members agree on it.
    let agreed = (member(), 0..RUNS - 1, 0..RUN, 1..4_u32).prop_map(|(member, run, at, count)| {
        let names = (at..RUN.min(at + count))
            .map(|at| long(u64::from(100 + run * 10 + at)))
            .collect();
        HashStep::Announce {
            member,
            names,
            block_ref: BlockRef { run, at },
        }
    });
    prop_oneof![
        8 => announce,
        8 => agreed,
        3 => (0..RUNS, 0..RUN, 1..=RUN).prop_map(|(run, from, len)| HashStep::Forget { run, range: from..from + len }),
        1 => (member(), name()).prop_map(|(member, name)| HashStep::Unname { member, name }),
        1 => member().prop_map(|member| HashStep::Clear { member }),
        1 => member().prop_map(|member| HashStep::Leave { member }),
        1 => (member(), 0..2_u32).prop_map(|(member, common)| HashStep::Join { member, common }),
        1 => Just(HashStep::Tidy),
    ]
}

/// Returns the one block size of a run.
fn size_of_run(run: u32) -> BlockSize {
    size(if run == 0 { 32 } else { 16 })
}

#[derive(Default)]
struct HashModel {
    groups: BTreeMap<u32, GroupNames>,
    /// All announcements of each member, in its whole life.
    words: BTreeMap<u32, BTreeSet<(BlockName, BlockRef)>>,
    /// The announcements of each member since it joined, and so the blocks that it holds.
    own: BTreeMap<u32, BTreeSet<(BlockName, BlockRef)>>,
    /// Members that agreed with another one on a long hash.
    agreed: BTreeSet<u32>,
}

impl HashModel {
    fn start(&mut self, member: u32) {
        self.own.insert(member, BTreeSet::new());
        self.words.insert(member, BTreeSet::new());
        self.agreed.remove(&member);
    }

    fn resident(&self, member: u32) -> BTreeSet<BlockRef> {
        self.own[&member]
            .iter()
            .map(|(_, block_ref)| *block_ref)
            .collect()
    }

    /// Applies an announcement to a group; returns the first contradiction in a shared one.
    fn announce(
        reported: &mut GroupNames,
        alone: bool,
        names: &[EngineHash],
        from: BlockRef,
    ) -> Result<Vec<BlockRef>, HashConflict> {
        let (mut moved, mut after) = (Vec::new(), reported.clone());
        for (name, at) in names.iter().zip(from.at..) {
            let (key, block_ref) = (
                (size_of_run(from.run), *name),
                BlockRef { run: from.run, at },
            );
            let other = after.get(&key).copied().filter(|known| *known != block_ref);
            let named = after.values().any(|known| *known == block_ref);
            if !alone && after.get(&key) != Some(&block_ref) && (other.is_some() || named) {
                return Err(HashConflict {
                    name: *name,
                    block_ref,
                });
            }
            moved.extend(other);
            after.insert(key, block_ref);
        }
        let named_again = |block_ref: &BlockRef| {
            names.iter().zip(from.at..).any(|(name, at)| {
                let reported = BlockRef { run: from.run, at };
                reported == *block_ref
                    && after.get(&(size_of_run(from.run), *name)) == Some(block_ref)
            })
        };
        moved.retain(|block_ref| !named_again(block_ref));
        *reported = after;
        Ok(moved)
    }

    fn forget(&mut self, is_removed: impl Fn(BlockRef) -> bool) {
        self.groups
            .values_mut()
            .for_each(|reported| reported.retain(|_, block_ref| !is_removed(*block_ref)));
        for reported in self.own.values_mut().chain(self.words.values_mut()) {
            reported.retain(|(_, block_ref)| !is_removed(*block_ref));
        }
    }
}

fn alone(names: &EngineHashTable, group: u32) -> bool {
    names
        .members()
        .filter(|member| member.group == group)
        .count()
        == 1
}

fn announce(
    names: &mut EngineHashTable,
    model: &mut HashModel,
    member: u32,
    reported: &[EngineHash],
    block_ref: BlockRef,
) -> Result<(), TestCaseError> {
    for parted in 0..3 {
        let of = group(names, member);
        let before = model.groups.entry(of).or_default();
        let known = reported.iter().zip(block_ref.at..).any(|(name, at)| {
            name.0 > 1 << 32
                && before.get(&(size_of_run(block_ref.run), *name))
                    == Some(&BlockRef {
                        run: block_ref.run,
                        at,
                    })
        });
        let expected = HashModel::announce(before, alone(names, of), reported, block_ref);
        let got = names.announce(member, size_of_run(block_ref.run), reported, block_ref);
        prop_assert_eq!(got.clone().map(|announced| announced.moved), expected);
        let refused = match got {
            Ok(announced) => {
                if known {
                    model.agreed.insert(member);
                }
                let own = model.own.get_mut(&member).unwrap();
                own.retain(|(_, block_ref)| !announced.moved.contains(block_ref));
                for (name, at) in reported.iter().zip(block_ref.at..) {
                    let (key, block_ref) = (
                        (size_of_run(block_ref.run), *name),
                        BlockRef {
                            run: block_ref.run,
                            at,
                        },
                    );
                    own.retain(|(other, _)| *other != key);
                    own.insert((key, block_ref));
                    model
                        .words
                        .get_mut(&member)
                        .unwrap()
                        .insert((key, block_ref));
                }
                return Ok(());
            }
            Err(refused) => refused,
        };
        prop_assert!(parted < 2, "split twice, and still refused");
        let resident = model.resident(member);
        names.split_group(
            member,
            resident
                .iter()
                .map(|block_ref| (block_ref.run, block_ref.at..block_ref.at + 1)),
            refused,
        );
        let joined = group(names, member);
        prop_assert_ne!(joined, of);
        let along: Vec<_> = model.groups[&of]
            .clone()
            .into_iter()
            .filter(|(_, block_ref)| resident.contains(block_ref))
            .collect();
        if alone(names, joined) {
            model.groups.insert(joined, GroupNames::new());
        } else if refused.name.0 > 1 << 32 {
            model.agreed.insert(member);
        }
        let there = model.groups.get_mut(&joined).unwrap();
        for (name, block_ref) in along {
            let other = there.insert(name, block_ref);
            prop_assert!(
                other.is_none_or(|other| other == block_ref),
                "it joined a group that contradicts it"
            );
        }
    }
    Ok(())
}

fn apply(
    names: &mut EngineHashTable,
    model: &mut HashModel,
    step: HashStep,
) -> Result<(), TestCaseError> {
    match step {
        HashStep::Announce {
            member,
            names: reported,
            block_ref,
        } => {
            if model.own.contains_key(&member) {
                announce(names, model, member, &reported, block_ref)?;
            }
        }
        HashStep::Forget { run, range } => {
            names.forget(run, range.clone());
            model.forget(|block_ref| block_ref.run == run && range.contains(&block_ref.at));
        }
        HashStep::Unname { member, name } => {
            if model.own.contains_key(&member) && alone(names, group(names, member)) {
                model
                    .groups
                    .entry(group(names, member))
                    .or_default()
                    .remove(&(size(16), name));
                model
                    .own
                    .get_mut(&member)
                    .unwrap()
                    .retain(|(known, _)| *known != (size(16), name));
            }
            names.remove_hash(member, name, size(16));
        }
        HashStep::Clear { member } => {
            names.clear(member);
            if model.own.contains_key(&member) {
                model.start(member);
            }
        }
        HashStep::Leave { member } => {
            names.remove_member(member);
            model.own.remove(&member);
        }
        HashStep::Join { member, common } => {
            names.join(member, common);
            model.start(member);
        }
        HashStep::Tidy => while names.tidy() {},
    }
    let living: BTreeSet<_> = names.members().map(|member| member.group).collect();
    model.groups.retain(|group, _| living.contains(group));
    compare(names, model)
}

fn compare(names: &EngineHashTable, model: &HashModel) -> Result<(), TestCaseError> {
    let mut exported: BTreeMap<u32, GroupNames> = BTreeMap::new();
    for run in 0..RUNS {
        for stretch in names.names_of(run) {
            for (name, at) in stretch.names.iter().zip(stretch.at..) {
                let other = exported
                    .entry(stretch.group)
                    .or_default()
                    .insert((stretch.size, *name), BlockRef { run, at });
                prop_assert_eq!(other, None);
            }
        }
    }
    let expected: BTreeMap<_, _> = model
        .groups
        .clone()
        .into_iter()
        .filter(|(_, reported)| !reported.is_empty())
        .collect();
    prop_assert_eq!(exported, expected);
    for (member, own) in &model.own {
        let reported = model.groups.get(&group(names, *member));
        for name in (0..4).map(EngineHash).chain((0..200).map(long)) {
            for tokens in [16, 32] {
                let key = (size(tokens), name);
                let resolved = names.resolve(*member, name, key.0);
                let block_ref = reported.and_then(|reported| reported.get(&key)).copied();
                prop_assert_eq!(resolved.map(|resolved| resolved.block_ref), block_ref);
                let Some(resolved) = resolved else { continue };
                let own = model.words[member].contains(&(key, resolved.block_ref));
                prop_assert!(
                    own || !resolved.proven || model.agreed.contains(member),
                    "{:?}: not {}'s",
                    key,
                    member
                );
            }
        }
        for ((size, name), block_ref) in own {
            prop_assert_eq!(
                names
                    .resolve(*member, *name, *size)
                    .map(|resolved| resolved.block_ref),
                Some(*block_ref)
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    #[contract("V9", "DY18")]
    fn hashes_equal_a_plain_map_per_group(steps in prop::collection::vec(step(), 1..60)) {
        let mut names = EngineHashTable::new(7, 0);
        let mut model = HashModel::default();
        for member in 0..MEMBERS {
            names.join(member, 0);
            model.start(member);
        }
        for step in steps {
            apply(&mut names, &mut model, step)?;
        }
        for member in 0..MEMBERS {
            names.remove_member(member);
        }
        while names.tidy() {}
        prop_assert_eq!(names.table.bytes(), EngineHashTable::new(7, 0).table.bytes());
    }
}
