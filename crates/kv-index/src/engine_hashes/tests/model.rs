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
        spot: BlockRef,
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
    let spot = (0..RUNS, 0..RUN).prop_map(|(run, at)| BlockRef { run, at });
    let announce = (member(), prop::collection::vec(name(), 1..4), spot).prop_map(
        |(member, mut names, spot)| {
            names.truncate((RUN - spot.at) as usize);
            HashStep::Announce {
                member,
                names,
                spot,
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
            spot: BlockRef { run, at },
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
    families: BTreeMap<u32, GroupNames>,
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

    fn held(&self, member: u32) -> BTreeSet<BlockRef> {
        self.own[&member].iter().map(|(_, spot)| *spot).collect()
    }

    /// Applies an announcement to a group; returns the first contradiction in a shared one.
    fn announce(
        said: &mut GroupNames,
        alone: bool,
        names: &[EngineHash],
        from: BlockRef,
    ) -> Result<Vec<BlockRef>, HashConflict> {
        let (mut moved, mut after) = (Vec::new(), said.clone());
        for (name, at) in names.iter().zip(from.at..) {
            let (key, spot) = (
                (size_of_run(from.run), *name),
                BlockRef { run: from.run, at },
            );
            let other = after.get(&key).copied().filter(|known| *known != spot);
            let named = after.values().any(|known| *known == spot);
            if !alone && after.get(&key) != Some(&spot) && (other.is_some() || named) {
                return Err(HashConflict { name: *name, spot });
            }
            moved.extend(other);
            after.insert(key, spot);
        }
        let named_again = |spot: &BlockRef| {
            names.iter().zip(from.at..).any(|(name, at)| {
                let said = BlockRef { run: from.run, at };
                said == *spot && after.get(&(size_of_run(from.run), *name)) == Some(spot)
            })
        };
        moved.retain(|spot| !named_again(spot));
        *said = after;
        Ok(moved)
    }

    fn forget(&mut self, gone: impl Fn(BlockRef) -> bool) {
        self.families
            .values_mut()
            .for_each(|said| said.retain(|_, spot| !gone(*spot)));
        for said in self.own.values_mut().chain(self.words.values_mut()) {
            said.retain(|(_, spot)| !gone(*spot));
        }
    }
}

fn alone(names: &EngineHashTable, family: u32) -> bool {
    names
        .members()
        .filter(|member| member.family == family)
        .count()
        == 1
}

fn announce(
    names: &mut EngineHashTable,
    model: &mut HashModel,
    member: u32,
    said: &[EngineHash],
    spot: BlockRef,
) -> Result<(), TestCaseError> {
    for parted in 0..3 {
        let of = family(names, member);
        let before = model.families.entry(of).or_default();
        let known = said.iter().zip(spot.at..).any(|(name, at)| {
            name.0 > 1 << 32
                && before.get(&(size_of_run(spot.run), *name))
                    == Some(&BlockRef { run: spot.run, at })
        });
        let wanted = HashModel::announce(before, alone(names, of), said, spot);
        let got = names.announce(member, size_of_run(spot.run), said, spot);
        prop_assert_eq!(got.clone().map(|announced| announced.moved), wanted);
        let refused = match got {
            Ok(announced) => {
                if known {
                    model.agreed.insert(member);
                }
                let own = model.own.get_mut(&member).unwrap();
                own.retain(|(_, spot)| !announced.moved.contains(spot));
                for (name, at) in said.iter().zip(spot.at..) {
                    let (key, spot) = (
                        (size_of_run(spot.run), *name),
                        BlockRef { run: spot.run, at },
                    );
                    own.retain(|(other, _)| *other != key);
                    own.insert((key, spot));
                    model.words.get_mut(&member).unwrap().insert((key, spot));
                }
                return Ok(());
            }
            Err(refused) => refused,
        };
        prop_assert!(parted < 2, "split twice, and still refused");
        let held = model.held(member);
        names.split_group(
            member,
            held.iter().map(|spot| (spot.run, spot.at..spot.at + 1)),
            refused,
        );
        let joined = family(names, member);
        prop_assert_ne!(joined, of);
        let along: Vec<_> = model.families[&of]
            .clone()
            .into_iter()
            .filter(|(_, spot)| held.contains(spot))
            .collect();
        if alone(names, joined) {
            model.families.insert(joined, GroupNames::new());
        } else if refused.name.0 > 1 << 32 {
            model.agreed.insert(member);
        }
        let there = model.families.get_mut(&joined).unwrap();
        for (name, spot) in along {
            let other = there.insert(name, spot);
            prop_assert!(
                other.is_none_or(|other| other == spot),
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
            names: said,
            spot,
        } => {
            if model.own.contains_key(&member) {
                announce(names, model, member, &said, spot)?;
            }
        }
        HashStep::Forget { run, range } => {
            names.forget(run, range.clone());
            model.forget(|spot| spot.run == run && range.contains(&spot.at));
        }
        HashStep::Unname { member, name } => {
            if model.own.contains_key(&member) && alone(names, family(names, member)) {
                model
                    .families
                    .entry(family(names, member))
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
            names.leave(member);
            model.own.remove(&member);
        }
        HashStep::Join { member, common } => {
            names.join(member, common);
            model.start(member);
        }
        HashStep::Tidy => while names.tidy() {},
    }
    let living: BTreeSet<_> = names.members().map(|member| member.family).collect();
    model.families.retain(|family, _| living.contains(family));
    compare(names, model)
}

fn compare(names: &EngineHashTable, model: &HashModel) -> Result<(), TestCaseError> {
    let mut exported: BTreeMap<u32, GroupNames> = BTreeMap::new();
    for run in 0..RUNS {
        for stretch in names.names_of(run) {
            for (name, at) in stretch.names.iter().zip(stretch.at..) {
                let other = exported
                    .entry(stretch.family)
                    .or_default()
                    .insert((stretch.size, *name), BlockRef { run, at });
                prop_assert_eq!(other, None);
            }
        }
    }
    let wanted: BTreeMap<_, _> = model
        .families
        .clone()
        .into_iter()
        .filter(|(_, said)| !said.is_empty())
        .collect();
    prop_assert_eq!(exported, wanted);
    for (member, own) in &model.own {
        let said = model.families.get(&family(names, *member));
        for name in (0..4).map(EngineHash).chain((0..200).map(long)) {
            for tokens in [16, 32] {
                let key = (size(tokens), name);
                let resolved = names.resolve(*member, name, key.0);
                let spot = said.and_then(|said| said.get(&key)).copied();
                prop_assert_eq!(resolved.map(|resolved| resolved.spot), spot);
                let Some(resolved) = resolved else { continue };
                let own = model.words[member].contains(&(key, resolved.spot));
                prop_assert!(
                    own || !resolved.proven || model.agreed.contains(member),
                    "{:?}: not {}'s",
                    key,
                    member
                );
            }
        }
        for ((size, name), spot) in own {
            prop_assert_eq!(
                names
                    .resolve(*member, *name, *size)
                    .map(|resolved| resolved.spot),
                Some(*spot)
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
            names.leave(member);
        }
        while names.tidy() {}
        prop_assert_eq!(names.table.bytes(), EngineHashTable::new(7, 0).table.bytes());
    }
}
