//! Against the plainest thing that could be right: sets of prefixes per target.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use contract_id::contract;
use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, Identity, IndexUpdate, Moment, Namespace, Removed, SequenceHash, Stored,
    Target, Tier, WorkerId,
};
use kv_index::{DumpPlace, IndexSettings, KvIndex, Overlap, TierBlocks};
use proptest::{collection::vec, prelude::*};

/// One token a block, two tokens in the world, sequences up to six blocks: few enough to meet again and again.
type Prefix = Vec<u32>;

#[derive(Clone, Debug)]
enum Step {
    Store { target: usize, prefix: Prefix, from: usize, tier: Tier },
    Remove { target: usize, prefix: Prefix, tier: Tier },
    Cleared { target: usize },
    Clear { target: usize },
    RemoveWorker { target: usize },
    Speculate { target: usize, prefix: Prefix, ttl_s: u64 },
    Wait { seconds: u64 },
}

fn prefix() -> impl Strategy<Value = Prefix> {
    vec(0..2_u32, 1..6)
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![3 => Just(Tier::Device), 1 => Just(Tier::Host), 1 => Just(Tier::Disk)]
}

fn step() -> impl Strategy<Value = Step> {
    let target = 0..3_usize;
    prop_oneof![
        6 => (target.clone(), prefix(), 0..6_usize, tier())
            .prop_map(|(target, prefix, from, tier)| Step::Store { target, from: from % prefix.len(), prefix, tier }),
        5 => (target.clone(), prefix(), tier())
            .prop_map(|(target, prefix, tier)| Step::Remove { target, prefix, tier }),
        1 => target.clone().prop_map(|target| Step::Cleared { target }),
        1 => target.clone().prop_map(|target| Step::Clear { target }),
        1 => target.clone().prop_map(|target| Step::RemoveWorker { target }),
        2 => (target, prefix(), 1..10_u64)
            .prop_map(|(target, prefix, ttl_s)| Step::Speculate { target, prefix, ttl_s }),
        1 => (1..5_u64).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// Targets 0 and 1 are ranks of one worker.
fn target(number: usize) -> Target {
    [(0, 0), (0, 1), (7, 0)].map(|(worker, rank)| Target { worker: WorkerId(worker), rank: DpRank(rank) })[number]
}

fn size() -> BlockSize {
    BlockSize::new(1).unwrap()
}

fn namespace() -> Namespace {
    Namespace { model: Arc::from("m"), lora: None, salt: None, block_size: size(), identity: Identity::Tokens }
}

fn chain(prefix: &[u32]) -> Vec<SequenceHash> {
    HashScheme::default().chain(None, prefix, size())
}

/// Every target has names of its own for the same content, chosen so that another target's name for something else is
/// the same number.
fn name(target: usize, prefix: &[u32]) -> EngineHash {
    let number = prefix.iter().fold(1, |number, token| number * 2 + u64::from(*token));
    EngineHash(number + target as u64)
}

#[derive(Default)]
struct Model {
    held: BTreeMap<(usize, Prefix), BTreeSet<Tier>>,
    /// What a target has a name for, held or not.
    named: BTreeSet<(usize, Prefix)>,
    expected: BTreeMap<(usize, Prefix), u64>,
    now_s: u64,
    orphans: u64,
}

impl Model {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Store { target, prefix, from, tier } => {
                if *from > 0 && !self.named.contains(&(*target, prefix[..*from].to_vec())) {
                    self.orphans += (prefix.len() - from) as u64;
                    return;
                }
                for end in from + 1..=prefix.len() {
                    let key = (*target, prefix[..end].to_vec());
                    self.expected.remove(&key);
                    self.named.insert(key.clone());
                    self.held.entry(key).or_default().insert(*tier);
                }
            }
            Step::Remove { target, prefix, tier } => {
                let key = (*target, prefix.clone());
                if let Some(tiers) = self.held.get_mut(&key) {
                    tiers.remove(tier);
                    if tiers.is_empty() {
                        self.held.remove(&key);
                    }
                }
            }
            Step::Cleared { target } => {
                self.held.retain(|(holder, _), tiers| {
                    if holder == target {
                        tiers.remove(&Tier::Device);
                    }
                    !tiers.is_empty()
                });
                self.named.retain(|key| key.0 != *target || self.held.contains_key(key));
                self.expected.retain(|(holder, _), _| holder != target);
            }
            Step::Clear { target } => self.forget(|holder| holder == *target),
            Step::RemoveWorker { target: gone } => {
                self.forget(|holder| target(holder).worker == target(*gone).worker);
            }
            Step::Speculate { target, prefix, ttl_s } => {
                for end in 1..=prefix.len() {
                    let key = (*target, prefix[..end].to_vec());
                    if !self.held.contains_key(&key) {
                        let until = self.expected.entry(key).or_default();
                        *until = (*until).max(self.now_s + ttl_s);
                    }
                }
            }
            Step::Wait { seconds } => self.now_s += seconds,
        }
        self.expected.retain(|_, until| *until > self.now_s);
    }

    fn forget(&mut self, gone: impl Fn(usize) -> bool) {
        self.held.retain(|(holder, _), _| !gone(*holder));
        self.named.retain(|(holder, _)| !gone(*holder));
        self.expected.retain(|(holder, _), _| !gone(*holder));
    }

    fn lookup(&self, prefix: &[u32]) -> Vec<Overlap> {
        let mut overlaps = Vec::new();
        for number in 0..3 {
            let mut blocks = TierBlocks::default();
            for end in 1..=prefix.len() {
                let key = (number, prefix[..end].to_vec());
                match self.held.get(&key).and_then(|tiers| tiers.first()) {
                    Some(Tier::Device) => blocks.device += 1,
                    Some(Tier::Host) => blocks.host += 1,
                    Some(Tier::Disk) => blocks.disk += 1,
                    Some(Tier::Remote) => blocks.remote += 1,
                    None if self.expected.contains_key(&key) => blocks.speculative += 1,
                    None => break,
                }
            }
            if blocks.total() > 0 {
                overlaps.push(Overlap { target: target(number), blocks });
            }
        }
        overlaps
    }
}

fn apply(index: &KvIndex, step: &Step, now: Moment) {
    match step {
        Step::Store { target: number, prefix, from, tier } => {
            let stored = Stored {
                hashes: (from + 1..=prefix.len()).map(|end| name(*number, &prefix[..end])).collect(),
                parent: (*from > 0).then(|| name(*number, &prefix[..*from])),
                tokens: prefix[*from..].to_vec(),
                block_size: size(),
                lora: None,
                salt: None,
                tier: *tier,
            };
            index.apply(target(*number), &IndexUpdate::Stored(stored));
        }
        Step::Remove { target: number, prefix, tier } => {
            let removed = Removed { hashes: vec![name(*number, prefix)], tier: *tier };
            index.apply(target(*number), &IndexUpdate::Removed(removed));
        }
        Step::Cleared { target: number } => {
            index.apply(target(*number), &IndexUpdate::Cleared);
        }
        Step::Clear { target: number } => index.clear(target(*number)),
        Step::RemoveWorker { target: number } => {
            index.remove_worker(target(*number).worker);
            for number in 0..3 {
                index.register(target(number), Arc::from("m"));
            }
        }
        Step::Speculate { target: number, prefix, ttl_s } => {
            index.speculate(target(*number), &namespace(), &chain(prefix), now, Duration::from_secs(*ttl_s));
        }
        Step::Wait { .. } => index.expire(now),
    }
}

fn compare(index: &KvIndex, model: &Model, now: Moment) -> Result<(), TestCaseError> {
    for word in 0..1_u32 << 6 {
        let prefix: Prefix = (0..6).map(|bit| word >> bit & 1).collect();
        prop_assert_eq!(index.lookup(&namespace(), &chain(&prefix), now), model.lookup(&prefix));
    }
    let mut rows = BTreeSet::new();
    let mut place = DumpPlace::default();
    for row in std::iter::from_fn(|| index.dump(&mut place)).flatten() {
        let new = rows.insert((row.target, row.hash, row.tier, row.depth, row.parent));
        assert!(new, "a row twice");
    }
    let wanted = model.held.iter().flat_map(|((number, prefix), tiers)| {
        let chain = chain(prefix);
        let depth = prefix.len() - 1;
        let parent = depth.checked_sub(1).map(|at| chain[at]);
        let depth32 = u32::try_from(depth).unwrap();
        tiers.iter().map(move |tier| (target(*number), chain[depth], *tier, depth32, parent))
    });
    prop_assert_eq!(&rows, &wanted.collect::<BTreeSet<_>>());

    let stats = index.stats();
    let distinct: BTreeSet<_> = model.held.keys().map(|(_, prefix)| prefix).collect();
    prop_assert_eq!(stats.distinct, distinct.len() as u64);
    prop_assert_eq!(stats.memberships, model.held.len() as u64);
    prop_assert_eq!(stats.orphans, model.orphans);
    prop_assert_eq!(stats.shed, 0);
    for number in 0..3 {
        let count = |tier| rows.iter().filter(|row| row.0 == target(number) && row.2 == tier).count() as u64;
        prop_assert_eq!(index.blocks_per_tier(target(number)), Tier::ALL.map(count));
    }
    Ok(())
}

/// The same content, announced afresh.
fn rebuilt(model: &Model) -> KvIndex {
    let index = KvIndex::new(IndexSettings::default());
    for number in (0..3).rev() {
        index.register(target(number), Arc::from("m"));
    }
    // Whole sequences, then what should not be there goes: only the content is the same.
    for ((number, prefix), tiers) in model.held.iter().rev() {
        for tier in tiers {
            apply(
                &index,
                &Step::Store { target: *number, prefix: prefix.clone(), from: 0, tier: *tier },
                Moment::START,
            );
        }
    }
    for ((number, prefix), tiers) in &model.held {
        for end in 1..=prefix.len() {
            let key = (*number, prefix[..end].to_vec());
            for tier in tiers {
                if !model.held.get(&key).is_some_and(|held| held.contains(tier)) {
                    apply(&index, &Step::Remove { target: *number, prefix: key.1.clone(), tier: *tier }, Moment::START);
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
    fn it_answers_as_sets_of_prefixes_would(steps in vec(step(), 0..80)) {
        let index = KvIndex::new(IndexSettings::default());
        for number in 0..3 {
            index.register(target(number), Arc::from("m"));
        }
        let mut model = Model::default();
        for step in &steps {
            model.step(step);
            apply(&index, step, Moment::at(Duration::from_secs(model.now_s)));
        }
        let now = Moment::at(Duration::from_secs(model.now_s));
        compare(&index, &model, now)?;
        index.expire(now);
        prop_assert_eq!(index.stats().speculative, model.expected.len() as u64);
        prop_assert_eq!(index.digest(), rebuilt(&model).digest());

        // When everything is gone nothing is left behind.
        for number in 0..3 {
            index.remove_worker(target(number).worker);
        }
        let stats = index.stats();
        prop_assert_eq!((stats.bytes, stats.namespaces, stats.memberships, stats.speculative), (0, 0, 0, 0));
    }
}
