//! Random operations with little memory: after each one the writer's state agrees with the
//! structure.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]
#![allow(clippy::cast_possible_truncation, reason = "numbers are drawn small")]

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use kv_blocks::{
    BlockSize, DpRank, EngineHash, HashScheme, IndexUpdate, Moment, Namespace, PromptIdentity,
    RemovedBlocks, SequenceHash, StoredBlocks, Target, Tier, WorkerId,
};
use proptest::prelude::*;

use crate::{IndexSettings, KvIndex, SpeculationId};

const TARGETS: u64 = 6;
const PROMPTS: u64 = 40;

/// Draws numbers from the digits of a random one.
struct NumberSource(u64);

impl NumberSource {
    fn below(&mut self, bound: u64) -> u64 {
        let number = self.0 % bound;
        self.0 = (self.0 / bound)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            ^ self.0 >> 7;
        number
    }

    fn tier(&mut self) -> Tier {
        Tier::ALL[[0, 0, 0, 1, 2, 3][self.below(6) as usize]]
    }
}

fn target(number: u64) -> Target {
    Target {
        worker: WorkerId(number as u32 / 2),
        rank: DpRank(number as u32 % 2),
    }
}

fn size() -> BlockSize {
    BlockSize::new(1).unwrap()
}

fn namespace(prompt: u64) -> Namespace {
    let salt = (!prompt.is_multiple_of(3)).then(|| Arc::from(format!("salt {}", prompt % 3)));
    Namespace {
        model: Arc::from("m"),
        lora: None,
        salt,
        block_size: size(),
        identity: PromptIdentity::Tokens,
    }
}

/// Prompts of one group share their beginning, each up to a different position.
fn tokens(prompt: u64) -> Vec<u32> {
    let shared = prompt % 5 * 11;
    (0..20 + prompt * 13)
        .map(|at| {
            (at * 100
                + if at < shared {
                    prompt / 10
                } else {
                    10 + prompt
                }) as u32
        })
        .collect()
}

/// Three kinds of engine hashes: equal within a group, unique, and small repeating numbers.
fn name(target: u64, hash: SequenceHash, at: usize) -> EngineHash {
    EngineHash(match target % 3 {
        0 => hash.0,
        1 => hash.0 ^ target,
        _ => at as u64 % 97,
    })
}

struct IndexFixture {
    index: KvIndex,
    now: Moment,
    speculations: Vec<SpeculationId>,
}

impl IndexFixture {
    fn new(memory_budget: u64) -> Self {
        let settings = IndexSettings {
            memory_budget,
            prediction_max_blocks: 700,
            ..IndexSettings::default()
        };
        let world = Self {
            index: KvIndex::new(settings),
            now: Moment::START,
            speculations: Vec::new(),
        };
        (0..TARGETS).for_each(|number| world.index.register(target(number), Arc::from("m")));
        world
    }

    fn play(&mut self, mut random: NumberSource) {
        let (number, prompt) = (random.below(TARGETS), random.below(PROMPTS));
        let (of, tokens, namespace) = (target(number), tokens(prompt), namespace(prompt));
        let chain = HashScheme::default().chain(None, &tokens, size());
        let kind = random.below(100);
        let from = if random.below(2) == 0 {
            0
        } else {
            random.below(chain.len() as u64) as usize
        };
        let to = if random.below(2) == 0 {
            chain.len()
        } else {
            from + 1 + random.below(40) as usize
        };
        let (from, to) = (from, to.min(chain.len()));
        let names = || {
            (from..to)
                .map(|at| name(number, chain[at], at))
                .collect::<Vec<_>>()
        };
        match kind {
            0..35 => {
                let parent = from.checked_sub(1).map(|at| name(number, chain[at], at));
                let tokens = tokens[from..to].to_vec();
                let (salt, tier) = (namespace.salt, random.tier());
                let stored = StoredBlocks {
                    hashes: names(),
                    parent,
                    tokens,
                    block_size: size(),
                    lora: None,
                    media: Vec::new(),
                    salt,
                    tier,
                };
                self.index.apply(of, &IndexUpdate::Stored(stored));
            }
            35..45 => {
                let parent = from.checked_sub(1).map(|at| chain[at]);
                self.index
                    .store_hashes(of, &namespace, parent, &chain[from..to], random.tier());
            }
            45..50 => {
                // It has the hashes of other blocks in another order, some twice.
                let mut lies: Vec<_> = (0..30)
                    .map(|_| chain[random.below(chain.len() as u64) as usize])
                    .collect();
                lies.insert(random.below(30) as usize, SequenceHash(random.below(50)));
                let parent = (random.below(2) == 0).then(|| chain[from]);
                self.index
                    .store_hashes(of, &namespace, parent, &lies, random.tier());
            }
            50..65 => {
                let mut hashes = names();
                if random.below(2) == 0 {
                    hashes.reverse();
                }
                self.index.apply(
                    of,
                    &IndexUpdate::Removed(RemovedBlocks {
                        hashes,
                        tier: random.tier(),
                    }),
                );
            }
            65..72 => {
                self.index
                    .remove_hashes(of, &namespace, &chain[from..to], random.tier());
            }
            72..86 => {
                let ttl = Duration::from_secs(1 + random.below(20));
                self.speculations.push(self.index.speculate(
                    of,
                    &namespace,
                    &chain[..to],
                    self.now,
                    ttl,
                ));
            }
            86..89 => {
                let at = random.below(self.speculations.len() as u64 + 1) as usize;
                if at < self.speculations.len() {
                    self.index.retract(self.speculations.swap_remove(at));
                }
            }
            89..91 => {
                self.index.apply(of, &IndexUpdate::Cleared);
            }
            91 if random.below(2) == 0 => self.index.clear(of),
            91 => self.index.retire(of),
            92..94 => self.index.clear_stream(of, &namespace, random.tier()),
            94 => {
                if random.below(2) == 0 {
                    self.index.remove_worker(of.worker);
                } else {
                    self.index.retire_worker(of.worker);
                }
                (0..TARGETS).for_each(|number| self.index.register(target(number), Arc::from("m")));
            }
            95 => self.index.mark_loss(of),
            96 => self.index.trust(of, random.below(2) == 0),
            _ => {
                self.now = self.now + Duration::from_secs(random.below(8));
                match random.below(4) {
                    0 | 1 => self.index.expire(self.now),
                    2 => drop(self.index.sweep()),
                    _ => {}
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[contract("DY6", "MC13")]
    fn the_accounting_agrees_with_the_structure_and_the_budget_holds(
        budget_kib in prop::sample::select(vec![48_u64, 64, 96, 128, 256, 1024]).no_shrink(),
        random in prop::collection::vec(any::<u64>().no_shrink(), 1..250),
    ) {
        let mut world = IndexFixture::new(budget_kib << 10);
        for number in random {
            world.play(NumberSource(number));
            world.index.check();
            let stats = world.index.stats();
            prop_assert!(stats.bytes <= stats.budget_bytes, "{stats:?}");
        }
        for number in 0..TARGETS {
            world.index.remove_worker(target(number).worker);
        }
        world.index.check();
        let stats = world.index.stats();
        prop_assert_eq!((stats.distinct, stats.memberships, stats.namespaces, stats.speculative), (0, 0, 0, 0));
    }
}

/// The parent of a store or of a speculative entry may itself be speculative, and speculative
/// blocks are evicted first.
#[test]
#[contract("DY4")]
fn the_parent_of_a_chain_is_not_evicted_for_its_children() {
    let long = HashScheme::default().chain(None, &(0..4000).collect::<Vec<_>>(), size());
    let (front, rest) = long.split_at(100);
    let ttl = Duration::from_secs(60);
    for filled in (0..1500).step_by(25) {
        for by_promise in [false, true] {
            let world = IndexFixture::new(64 << 10);
            let other: Vec<_> = (0..filled)
                .map(|number| SequenceHash(1 << 40 | number))
                .collect();
            let (index, plain) = (&world.index, namespace(0));
            index.store_hashes(target(2), &plain, None, &other, Tier::Device);
            index.speculate(target(1), &plain, front, world.now, ttl);
            if by_promise {
                index.speculate(target(0), &plain, &long[..700], world.now, ttl);
            } else {
                index.store_hashes(target(0), &plain, front.last().copied(), rest, Tier::Device);
            }
            index.check();
        }
    }
}
