//! Compares the index with a plain model: sets of prefixes per target, and a copy count of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use contract_id::contract;
use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, IndexUpdate, Moment, Namespace, PromptIdentity,
    RemovedBlocks, SequenceHash, StoredBlocks, Target, Tier, WorkerId,
};
use kv_index::{DumpCursor, IndexSettings, KvIndex, Overlap, TierBlocks};
use proptest::{collection::vec, prelude::*};

/// One token per block, two different tokens, sequences of up to six blocks: so few that they
/// collide often.
type TokenPath = Vec<u32>;

#[derive(Clone, Debug)]
enum IndexStep {
    Store {
        target: usize,
        prefix: TokenPath,
        from: usize,
        tier: Tier,
    },
    Remove {
        target: usize,
        prefix: TokenPath,
        tier: Tier,
    },
    Cleared {
        target: usize,
    },
    Clear {
        target: usize,
    },
    RemoveWorker {
        target: usize,
    },
    Speculate {
        target: usize,
        prefix: TokenPath,
        ttl_s: u64,
    },
    Wait {
        seconds: u64,
    },
    Hole {
        target: usize,
    },
    Trust {
        target: usize,
        trusted: bool,
    },
}

fn prefix() -> impl Strategy<Value = TokenPath> {
    vec(0..2_u32, 1..6)
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![3 => Just(Tier::Device), 1 => Just(Tier::Host), 1 => Just(Tier::Disk)]
}

fn step() -> impl Strategy<Value = IndexStep> {
    let target = 0..3_usize;
    prop_oneof![
        6 => (target.clone(), prefix(), 0..6_usize, tier())
            .prop_map(|(target, prefix, from, tier)| IndexStep::Store { target, from: from % prefix.len(), prefix, tier }),
        5 => (target.clone(), prefix(), tier())
            .prop_map(|(target, prefix, tier)| IndexStep::Remove { target, prefix, tier }),
        1 => target.clone().prop_map(|target| IndexStep::Cleared { target }),
        1 => target.clone().prop_map(|target| IndexStep::Clear { target }),
        1 => target.clone().prop_map(|target| IndexStep::RemoveWorker { target }),
        2 => (target.clone(), prefix(), 1..10_u64)
            .prop_map(|(target, prefix, ttl_s)| IndexStep::Speculate { target, prefix, ttl_s }),
        1 => target.clone().prop_map(|target| IndexStep::Hole { target }),
        1 => (target, any::<bool>()).prop_map(|(target, trusted)| IndexStep::Trust { target, trusted }),
        1 => (1..5_u64).prop_map(|seconds| IndexStep::Wait { seconds }),
    ]
}

/// Returns a target; 0 and 1 are ranks of one worker.
fn target(number: usize) -> Target {
    [(0, 0), (0, 1), (7, 0)].map(|(worker, rank)| Target {
        worker: WorkerId(worker),
        rank: DpRank(rank),
    })[number]
}

fn size() -> BlockSize {
    BlockSize::new(1).unwrap()
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

fn chain(prefix: &[u32]) -> Vec<SequenceHash> {
    HashScheme::default().chain(None, prefix, size())
}

/// Each target has its own hashes for the same content, chosen so that another target uses the same
/// number for other content.
fn name(target: usize, prefix: &[u32]) -> EngineHash {
    let number = prefix
        .iter()
        .fold(1, |number, token| number * 2 + u64::from(*token));
    EngineHash(number + target as u64)
}

#[derive(Default)]
struct IndexModel {
    resident: BTreeMap<(usize, TokenPath), BTreeSet<Tier>>,
    expected: BTreeMap<(usize, TokenPath), u64>,
    /// Additional copies of blocks on a device.
    spare: BTreeMap<(usize, TokenPath), u64>,
    /// Uncertain credits, each with the removal that ends it.
    on_trust: BTreeMap<(usize, TokenPath), u64>,
    removals: BTreeMap<usize, u64>,
    distrusted: BTreeSet<usize>,
    now_s: u64,
}

impl IndexModel {
    fn has_no_parent(&self, step: &IndexStep) -> bool {
        let IndexStep::Store {
            target,
            prefix,
            from,
            ..
        } = step
        else {
            return false;
        };
        *from > 0
            && !self
                .resident
                .contains_key(&(*target, prefix[..*from].to_vec()))
    }

    fn step(&mut self, step: &IndexStep) {
        match step {
            IndexStep::Store {
                target,
                prefix,
                from,
                tier,
            } => {
                if *tier == Tier::Device {
                    self.on_trust.remove(&(*target, prefix[..*from].to_vec()));
                }
                let mut repeats = *from == 0;
                for end in from + 1..=prefix.len() {
                    let key = (*target, prefix[..end].to_vec());
                    if !self.distrusted.contains(target) {
                        self.expected.remove(&key);
                    }
                    repeats &= !self.resident.entry(key.clone()).or_default().insert(*tier);
                    if *tier == Tier::Device {
                        self.on_trust.remove(&key);
                        // At most seven are counted.
                        let count =
                            |copies: &mut u64| *copies = (*copies + u64::from(!repeats)).min(7);
                        self.spare.entry(key).and_modify(count).or_insert(0);
                    }
                }
            }
            IndexStep::Remove {
                target,
                prefix,
                tier,
            } => {
                let key = (*target, prefix.clone());
                if *tier != Tier::Device {
                    return self.remove_from_tier(&key, *tier);
                }
                *self.removals.entry(*target).or_default() += 1;
                match self.spare.get_mut(&key) {
                    Some(spare) if *spare > 0 => {
                        *spare -= 1;
                        let copies: u64 = self
                            .spare
                            .range(of(*target))
                            .map(|(_, spare)| 1 + spare)
                            .sum();
                        self.on_trust.insert(key, self.removals[target] + copies);
                    }
                    _ => self.remove_from_tier(&key, Tier::Device),
                }
                let removals = self.removals[target];
                self.lapse(*target, |ends| ends <= removals);
            }
            IndexStep::Hole { target } => {
                self.lapse(*target, |_| true);
                self.spare
                    .range_mut(of(*target))
                    .for_each(|(_, spare)| *spare = 0);
            }
            IndexStep::Trust {
                target,
                trusted: true,
            } => {
                if self.distrusted.remove(target) {
                    self.expected.retain(|(holder, _), _| holder != target);
                }
            }
            IndexStep::Trust {
                target,
                trusted: false,
            } => {
                self.distrusted.insert(*target);
            }
            IndexStep::Cleared { target } => {
                self.spare.retain(|(holder, _), _| holder != target);
                self.on_trust.retain(|(holder, _), _| holder != target);
                self.resident.retain(|(holder, _), tiers| {
                    if holder == target {
                        tiers.remove(&Tier::Device);
                    }
                    !tiers.is_empty()
                });
                self.expected.retain(|(holder, _), _| holder != target);
            }
            IndexStep::Clear { target } => self.forget(|holder| holder == *target),
            IndexStep::RemoveWorker { target: is_removed } => {
                let is_removed = |holder| target(holder).worker == target(*is_removed).worker;
                self.forget(is_removed);
                self.distrusted.retain(|holder| !is_removed(*holder));
                self.removals.retain(|holder, _| !is_removed(*holder));
            }
            IndexStep::Speculate {
                target,
                prefix,
                ttl_s,
            } => {
                for end in 1..=prefix.len() {
                    let key = (*target, prefix[..end].to_vec());
                    if self.distrusted.contains(target) || !self.resident.contains_key(&key) {
                        let until = self.expected.entry(key).or_default();
                        *until = (*until).max(self.now_s + ttl_s);
                    }
                }
            }
            IndexStep::Wait { seconds } => self.now_s += seconds,
        }
        self.expected.retain(|_, until| *until > self.now_s);
    }

    fn remove_from_tier(&mut self, key: &(usize, TokenPath), tier: Tier) {
        if tier == Tier::Device {
            self.spare.remove(key);
            self.on_trust.remove(key);
        }
        if let Some(tiers) = self.resident.get_mut(key) {
            tiers.remove(&tier);
            if tiers.is_empty() {
                self.resident.remove(key);
            }
        }
    }

    fn lapse(&mut self, target: usize, over: impl Fn(u64) -> bool) {
        let lapsed = self
            .on_trust
            .iter()
            .filter(|(key, ends)| key.0 == target && over(**ends));
        for key in lapsed.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.remove_from_tier(&key, Tier::Device);
        }
    }

    fn forget(&mut self, is_removed: impl Fn(usize) -> bool) {
        self.spare.retain(|(holder, _), _| !is_removed(*holder));
        self.on_trust.retain(|(holder, _), _| !is_removed(*holder));
        self.resident.retain(|(holder, _), _| !is_removed(*holder));
        self.expected.retain(|(holder, _), _| !is_removed(*holder));
    }

    fn lookup(&self, prefix: &[u32]) -> Vec<Overlap> {
        let mut overlaps = Vec::new();
        for number in 0..3 {
            let (blocks, announced) = if self.distrusted.contains(&number) {
                (
                    self.run(number, prefix, false, true),
                    self.run(number, prefix, true, false),
                )
            } else {
                let both = self.run(number, prefix, true, true);
                (both, both)
            };
            if blocks.total() + announced.total() > 0 {
                let present = self.present(number, prefix, blocks.total());
                overlaps.push(Overlap {
                    target: target(number),
                    blocks,
                    announced,
                    present,
                });
            }
        }
        overlaps
    }

    /// Number of the first `blocks` blocks in each tier; announcements of an untrusted target do
    /// not count.
    fn present(&self, number: usize, prefix: &[u32], blocks: u32) -> [u32; 4] {
        let run = (1..=blocks as usize).map(|end| (number, prefix[..end].to_vec()));
        let resident: Vec<_> = run.filter_map(|key| self.resident.get(&key)).collect();
        let trusted = !self.distrusted.contains(&number);
        Tier::ALL.map(|tier| {
            u32::try_from(
                resident
                    .iter()
                    .filter(|resident| trusted && resident.contains(&tier))
                    .count(),
            )
            .unwrap()
        })
    }

    /// The leading blocks of a target, from announced blocks, expected blocks, or both.
    fn run(&self, number: usize, prefix: &[u32], announced: bool, expected: bool) -> TierBlocks {
        let mut blocks = TierBlocks::default();
        for key in (1..=prefix.len()).map(|end| (number, prefix[..end].to_vec())) {
            match self
                .resident
                .get(&key)
                .filter(|_| announced)
                .and_then(|tiers| tiers.first())
            {
                Some(Tier::Device) => blocks.device += 1,
                Some(Tier::Host) => blocks.host += 1,
                Some(Tier::Disk) => blocks.disk += 1,
                Some(Tier::Remote) => blocks.remote += 1,
                None if expected && self.expected.contains_key(&key) => blocks.speculative += 1,
                None => break,
            }
        }
        blocks
    }
}

/// Range of one target's keys.
fn of(target: usize) -> std::ops::Range<(usize, TokenPath)> {
    (target, Vec::new())..(target + 1, Vec::new())
}

fn apply(index: &KvIndex, step: &IndexStep, now: Moment) {
    match step {
        IndexStep::Store {
            target: number,
            prefix,
            from,
            tier,
        } => {
            let stored = StoredBlocks {
                hashes: (from + 1..=prefix.len())
                    .map(|end| name(*number, &prefix[..end]))
                    .collect(),
                parent: (*from > 0).then(|| name(*number, &prefix[..*from])),
                tokens: prefix[*from..].to_vec(),
                block_size: size(),
                lora: None,
                media: Vec::new(),
                salt: None,
                tier: *tier,
            };
            index.apply(target(*number), &IndexUpdate::Stored(stored));
        }
        IndexStep::Remove {
            target: number,
            prefix,
            tier,
        } => {
            let removed = RemovedBlocks {
                hashes: vec![name(*number, prefix)],
                tier: *tier,
            };
            index.apply(target(*number), &IndexUpdate::Removed(removed));
        }
        IndexStep::Cleared { target: number } => {
            index.apply(target(*number), &IndexUpdate::Cleared);
        }
        IndexStep::Clear { target: number } => index.clear(target(*number)),
        IndexStep::RemoveWorker { target: number } => {
            index.remove_worker(target(*number).worker);
            for number in 0..3 {
                index.register(target(number), Arc::from("m"));
            }
        }
        IndexStep::Speculate {
            target: number,
            prefix,
            ttl_s,
        } => {
            index.speculate(
                target(*number),
                &namespace(),
                &chain(prefix),
                now,
                Duration::from_secs(*ttl_s),
            );
        }
        IndexStep::Wait { .. } => index.expire(now),
        IndexStep::Hole { target: number } => index.mark_loss(target(*number)),
        IndexStep::Trust {
            target: number,
            trusted,
        } => index.trust(target(*number), *trusted),
    }
}

fn compare(index: &KvIndex, model: &IndexModel, now: Moment) -> Result<(), TestCaseError> {
    for word in 0..1_u32 << 6 {
        let prefix: TokenPath = (0..6).map(|bit| word >> bit & 1).collect();
        prop_assert_eq!(
            index.lookup(&namespace(), &chain(&prefix), now),
            model.lookup(&prefix)
        );
    }
    let mut rows = BTreeSet::new();
    let mut cursor = DumpCursor::default();
    for row in std::iter::from_fn(|| index.dump(&mut cursor)).flatten() {
        let new = rows.insert((row.target, row.hash, row.tier, row.depth, row.parent));
        assert!(new, "a row occurs twice");
    }
    let expected_rows = model.resident.iter().flat_map(|((number, prefix), tiers)| {
        let chain = chain(prefix);
        let depth = prefix.len() - 1;
        let parent = depth.checked_sub(1).map(|at| chain[at]);
        let depth32 = u32::try_from(depth).unwrap();
        tiers
            .iter()
            .map(move |tier| (target(*number), chain[depth], *tier, depth32, parent))
    });
    prop_assert_eq!(&rows, &expected_rows.collect::<BTreeSet<_>>());

    let stats = index.stats();
    let distinct: BTreeSet<_> = model.resident.keys().map(|(_, prefix)| prefix).collect();
    prop_assert_eq!(stats.distinct, distinct.len() as u64);
    prop_assert_eq!(stats.memberships, model.resident.len() as u64);
    prop_assert_eq!(stats.orphans, 0);
    prop_assert_eq!(stats.shed, 0);
    for number in 0..3 {
        let count = |tier| {
            rows.iter()
                .filter(|row| row.0 == target(number) && row.2 == tier)
                .count() as u64
        };
        prop_assert_eq!(index.blocks_per_tier(target(number)), Tier::ALL.map(count));
    }
    Ok(())
}

/// Bytes of an index that once held blocks: memory from the system is kept.
fn at_rest() -> u64 {
    let index = KvIndex::new(IndexSettings {
        unconfirmed_ttl: Duration::ZERO,
        ..IndexSettings::default()
    });
    index.register(target(0), Arc::from("m"));
    apply(
        &index,
        &IndexStep::Store {
            target: 0,
            prefix: vec![0],
            from: 0,
            tier: Tier::Device,
        },
        Moment::START,
    );
    index.clear(target(0));
    index.stats().bytes
}

/// Returns an index with the same content, announced again.
fn rebuilt(model: &IndexModel) -> KvIndex {
    let index = KvIndex::new(IndexSettings {
        unconfirmed_ttl: Duration::ZERO,
        ..IndexSettings::default()
    });
    for number in (0..3).rev() {
        index.register(target(number), Arc::from("m"));
    }
    // Announces whole sequences, then removes the surplus: only the content is the same.
    for ((number, prefix), tiers) in model.resident.iter().rev() {
        for tier in tiers {
            apply(
                &index,
                &IndexStep::Store {
                    target: *number,
                    prefix: prefix.clone(),
                    from: 0,
                    tier: *tier,
                },
                Moment::START,
            );
        }
    }
    for ((number, prefix), tiers) in &model.resident {
        for end in 1..=prefix.len() {
            let key = (*number, prefix[..end].to_vec());
            for tier in tiers {
                if !model
                    .resident
                    .get(&key)
                    .is_some_and(|resident| resident.contains(tier))
                {
                    apply(
                        &index,
                        &IndexStep::Remove {
                            target: *number,
                            prefix: key.1.clone(),
                            tier: *tier,
                        },
                        Moment::START,
                    );
                }
            }
        }
    }
    index
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[contract("V4", "V7", "V12", "V15", "DY17", "DY18", "DY19", "V17")]
    fn answers_equal_those_of_sets_of_prefixes(steps in vec(step(), 0..80)) {
        let index = KvIndex::new(IndexSettings { unconfirmed_ttl: Duration::ZERO, ..IndexSettings::default() });
        for number in 0..3 {
            index.register(target(number), Arc::from("m"));
        }
        let mut model = IndexModel::default();
        // A store without a known parent waits for it: see oracle.rs.
        for step in &steps {
            if model.has_no_parent(step) {
                continue;
            }
            model.step(step);
            apply(&index, step, Moment::at(Duration::from_secs(model.now_s)));
        }
        let now = Moment::at(Duration::from_secs(model.now_s));
        compare(&index, &model, now)?;
        index.expire(now);
        prop_assert_eq!(index.stats().speculative, model.expected.len() as u64);
        prop_assert_eq!(index.digest(), rebuilt(&model).digest());

        // With all blocks gone, nothing is left but spare capacity.
        for number in 0..3 {
            index.remove_worker(target(number).worker);
        }
        let stats = index.stats();
        prop_assert_eq!((stats.namespaces, stats.memberships, stats.distinct, stats.speculative), (0, 0, 0, 0));
        prop_assert!(stats.bytes <= at_rest() + 8192, "{} bytes, {} at rest", stats.bytes, at_rest());
    }
}
