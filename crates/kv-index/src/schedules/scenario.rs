//! The whole index, two writers and two readers, in any schedule that a checker chooses.
//!
//! The test records the holdings of every target beside the index, with all states in order: during
//! a change both the certainly held and the possibly held blocks. An answer is right if in one of
//! the states during the lookup every credited block was held, and if it credits every block that
//! was held in all of them.

use std::sync::{Arc, Mutex, PoisonError};

#[cfg(not(shuttle))]
use std::thread;

use kv_blocks::{
    BlockSize, DpRank, Moment, Namespace, PromptIdentity, SequenceHash, Target, Tier, WorkerId,
};
#[cfg(shuttle)]
use shuttle::thread;

use super::split_mix::SplitMix64;
use crate::{IndexSettings, KvIndex, Matches, atomic::Ordering};

const TARGETS: usize = 7;
/// The prompts diverge after 5 and after 10 blocks.
const PROMPTS: [[u8; 14]; 3] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
    [0, 1, 2, 3, 4, 14, 15, 16, 17, 18, 19, 20, 21, 22],
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 23, 24, 25, 26],
];

/// Blocks that one target certainly holds, and may hold; a bit for each.
#[derive(Clone, Copy, Debug, Default)]
struct ResidencyBounds {
    surely: u32,
    perhaps: u32,
}

type ResidencyState = [ResidencyBounds; TARGETS];

struct ScenarioWorld {
    index: KvIndex,
    namespace: Namespace,
    /// All states so far. A plain lock, not the checker's: reading takes no scheduler step.
    states: Mutex<Vec<ResidencyState>>,
}

fn target(number: usize) -> Target {
    Target {
        worker: WorkerId(number as u32),
        rank: DpRank(0),
    }
}

fn hash(block: u8) -> SequenceHash {
    SequenceHash(u64::from(block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn hashes(blocks: &[u8]) -> Vec<SequenceHash> {
    blocks.iter().map(|block| hash(*block)).collect()
}

/// Returns the number of leading blocks of a prompt in `resident`.
fn leading(resident: u32, prompt: &[u8]) -> u32 {
    prompt
        .iter()
        .take_while(|block| resident >> **block & 1 == 1)
        .count() as u32
}

impl ScenarioWorld {
    fn new() -> Self {
        let settings = IndexSettings {
            memory_budget: 64 << 10,
            ..IndexSettings::default()
        };
        let namespace = Namespace {
            model: Arc::from("m"),
            lora: None,
            salt: None,
            block_size: BlockSize::new(16).unwrap(),
            identity: PromptIdentity::Tokens,
        };
        let index = KvIndex::new(settings);
        (0..TARGETS).for_each(|number| index.register(target(number), Arc::from("m")));
        Self {
            index,
            namespace,
            states: Mutex::new(vec![ResidencyState::default()]),
        }
    }

    /// Records a new state of a target, and returns its number.
    fn note(&self, number: usize, surely: u32, perhaps: u32) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = states[states.len() - 1];
        state[number] = ResidencyBounds { surely, perhaps };
        states.push(state);
    }

    fn last_state(&self) -> usize {
        self.states
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
            - 1
    }

    /// Does one lookup, and compares it with the states during it.
    fn lookup(&self, dice: &mut SplitMix64, matches: &mut Matches) {
        let prompt = dice.pick(&PROMPTS);
        let chain = &hashes(prompt)[..dice.within(1, prompt.len())];
        let prompt = &prompt[..chain.len()];
        let first = self.last_state();
        let mut credited = [0; TARGETS];
        if dice.chance(30) {
            for overlap in self.index.lookup(&self.namespace, chain, Moment::START) {
                credited[overlap.target.worker.0 as usize] = overlap.blocks.total();
            }
        } else {
            let assignments = || {
                self.index
                    .with(|_, core| core.assignments.load(Ordering::Acquire))
            };
            // A cleared target gets another slot: an answer from across that change is not valid.
            loop {
                let before = assignments();
                credited = [0; TARGETS];
                self.index.lookup_into(
                    self.index.namespace_key(&self.namespace),
                    chain,
                    Moment::START,
                    matches,
                );
                for (slot, blocks) in matches.iter() {
                    let Some(target) = self.index.target(slot) else {
                        continue;
                    };
                    let number = target.worker.0 as usize;
                    assert!(
                        credited[number] == 0 || assignments() != before,
                        "each target once"
                    );
                    credited[number] = blocks;
                }
                if assignments() == before {
                    break;
                }
            }
        }
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let during = &states[first..];
        let resident_at_once = |state: &ResidencyState| {
            credited
                .iter()
                .zip(state)
                .all(|(credited, resident)| *credited <= leading(resident.perhaps, prompt))
        };
        assert!(
            during.iter().any(resident_at_once),
            "{credited:?} of {prompt:?} were never held at once: {during:?}"
        );
        for (number, credited) in credited.iter().enumerate() {
            let always = during
                .iter()
                .fold(u32::MAX, |always, state| always & state[number].surely);
            assert!(
                *credited >= leading(always, prompt),
                "{number}: {credited} of {prompt:?}: {during:?}"
            );
        }
    }
}

/// The stream of one target, and its holdings in two tiers.
struct TargetStream<'a> {
    world: &'a ScenarioWorld,
    number: usize,
    tiers: [u32; 2],
}

impl TargetStream<'_> {
    fn change(&mut self, dice: &mut SplitMix64) {
        let tier = usize::from(dice.chance(25));
        if dice.chance(60) {
            self.store(tier, dice)
        } else {
            self.remove(tier, dice)
        }
    }

    fn resident(&self) -> u32 {
        self.tiers[0] | self.tiers[1]
    }

    /// Runs an operation that changes the holdings to `tiers`.
    fn to(&mut self, tiers: [u32; 2], act: impl FnOnce(&KvIndex)) {
        let (before, after) = (self.resident(), tiers[0] | tiers[1]);
        self.world.note(self.number, before & after, before | after);
        act(&self.world.index);
        self.tiers = tiers;
        self.world.note(self.number, after, after);
    }

    /// Stores some blocks of a prompt behind a held one.
    fn store(&mut self, tier: usize, dice: &mut SplitMix64) {
        let prompt = dice.pick(&PROMPTS);
        let resident = self.resident();
        let positions: Vec<usize> = (0..prompt.len())
            .filter(|at| {
                self.tiers[tier] >> prompt[*at] & 1 == 0
                    && (*at == 0 || resident >> prompt[at - 1] & 1 == 1)
            })
            .collect();
        if positions.is_empty() {
            return;
        }
        let from = *dice.pick(&positions);
        let most = prompt[from..]
            .iter()
            .take_while(|block| self.tiers[tier] >> **block & 1 == 0)
            .count();
        let blocks = &prompt[from..from + dice.within(1, most)];
        let mut tiers = self.tiers;
        blocks.iter().for_each(|block| tiers[tier] |= 1 << block);
        let (world, number) = (self.world, self.number);
        self.to(tiers, |index| {
            let parent = from.checked_sub(1).map(|at| hash(prompt[at]));
            let all = hashes(blocks);
            let applied = index.store_hashes(
                target(number),
                &world.namespace,
                parent,
                &all,
                Tier::ALL[tier],
            );
            assert_eq!(applied.applied as usize, blocks.len(), "{applied:?}");
        });
    }

    /// Removes some of the blocks held in a tier: at the end of a prompt, anywhere, or all.
    fn remove(&mut self, tier: usize, dice: &mut SplitMix64) {
        let (world, number) = (self.world, self.number);
        let prompt = dice.pick(&PROMPTS);
        let mut blocks: Vec<u8> = prompt
            .iter()
            .rev()
            .copied()
            .filter(|block| self.tiers[tier] >> block & 1 == 1)
            .collect();
        match dice.below(8) {
            0 => {
                let retire = dice.chance(50);
                return self.to([0, 0], |index| {
                    if retire {
                        index.retire(target(number))
                    } else {
                        index.clear(target(number))
                    }
                });
            }
            1 => blocks.retain(|_| dice.chance(50)),
            2 => {}
            _ => blocks.truncate(dice.within(0, blocks.len())),
        }
        let mut tiers = self.tiers;
        blocks.iter().for_each(|block| tiers[tier] &= !(1 << block));
        self.to(tiers, |index| {
            index.remove_hashes(
                target(number),
                &world.namespace,
                &hashes(&blocks),
                Tier::ALL[tier],
            );
        });
    }
}

/// Runs two writers and two readers; `seed` determines their operations, not the order.
pub(super) fn run(seed: u64) {
    let world = Arc::new(ScenarioWorld::new());
    let mut dice = SplitMix64::new(seed);
    let writers = [0..4, 4..TARGETS].map(|targets| {
        let (world, mut dice) = (Arc::clone(&world), SplitMix64::new(dice.roll()));
        thread::spawn(move || {
            let mut streams: Vec<_> = targets
                .map(|number| TargetStream {
                    world: &world,
                    number,
                    tiers: [0; 2],
                })
                .collect();
            for _ in 0..8 {
                let stream = dice.below(streams.len());
                streams[stream].change(&mut dice);
            }
        })
    });
    let readers = [(); 2].map(|()| {
        let (world, mut dice) = (Arc::clone(&world), SplitMix64::new(dice.roll()));
        thread::spawn(move || {
            let mut matches = Matches::default();
            (0..6).for_each(|_| world.lookup(&mut dice, &mut matches));
        })
    });
    writers
        .into_iter()
        .chain(readers)
        .for_each(|thread| thread.join().unwrap());
    // No operation is in progress any more: exactly the held blocks.
    (0..4).for_each(|_| world.lookup(&mut dice, &mut Matches::default()));
    world.index.check();
}
