//! Lookups beside one writer.
//!
//! Half of the prompts only grow while the other half only shrinks, then the reverse. Each block
//! and target has two bits: whether it is surely held (set after a store, cleared before a
//! removal), and whether it may be held (set before a store, cleared after a removal). Read before
//! and after a lookup, they bound its answer: at least the blocks held during the whole lookup, at
//! most the blocks held at any moment of it.
//!
//! **Invariant**: the bounds are exact within a phase. A lookup during which the phase changed is
//! not compared.

use std::{
    ops::AddAssign,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};

use kv_blocks::{Moment, Target, Tier};
use kv_index::{KvIndex, Matches, TargetSlot};

use super::{
    random::SplitMix64,
    setup::Setup,
    step::{Pattern, Start},
    trial::Trial,
    world::{Extent, NamespaceNo, NodeNo, OracleWorld, TargetNo},
};

/// A bit for each target.
const TARGETS: usize = 64;
/// Changes in one phase.
const PHASE: u64 = 400;

/// State shared by the readers and the writer.
#[derive(Debug)]
struct ReaderShared {
    world: Arc<OracleWorld>,
    index: Arc<KvIndex>,
    /// A bit for each target, per cell.
    surely: Vec<AtomicU64>,
    maybe: Vec<AtomicU64>,
    phase: AtomicU64,
    /// Lookups compared.
    compared: AtomicU64,
    over: AtomicBool,
}

/// Counts of a race.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReaderCounts {
    /// Lookups compared.
    pub(crate) compared: u64,
    /// Lookups during which the phase changed.
    pub(crate) skipped: u64,
    /// Sum of the targets credited in them.
    pub(crate) credited: u64,
}

impl AddAssign for ReaderCounts {
    fn add_assign(&mut self, other: Self) {
        self.compared += other.compared;
        self.skipped += other.skipped;
        self.credited += other.credited;
    }
}

/// Whether a prompt grows or shrinks in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Grows,
    Shrinks,
}

impl ReaderShared {
    /// Every fourth phase all prompts shrink, so that whole targets can be cleared.
    fn direction(&self, phase: u64, prompt: &[NodeNo]) -> Direction {
        let half = prompt[0].0 as u64 % 2;
        if phase % 4 == 3 || phase % 2 == half {
            Direction::Shrinks
        } else {
            Direction::Grows
        }
    }

    fn bits<'a>(&'a self, of: &'a [AtomicU64], space: NamespaceNo, node: NodeNo) -> &'a AtomicU64 {
        &of[self.world.cell(space, node)]
    }

    /// Returns the leading blocks of each target by one of the two kinds of bits.
    fn runs(&self, of: &[AtomicU64], space: NamespaceNo, prompt: &[NodeNo]) -> [u32; TARGETS] {
        let mut runs = [0; TARGETS];
        let mut running = u64::MAX;
        for node in prompt {
            running &= self.bits(of, space, *node).load(SeqCst);
            if running == 0 {
                break;
            }
            for (target, run) in runs.iter_mut().enumerate() {
                *run += u32::from(running >> target & 1 == 1);
            }
        }
        runs
    }

    /// Returns the owner of each slot: a cleared target has two while its blocks are being removed.
    fn owners(&self) -> [Option<Target>; 2 * TARGETS] {
        std::array::from_fn(|slot| {
            self.index
                .target(TargetSlot(u32::try_from(slot).expect("a few")))
        })
    }

    /// Does one lookup and compares it with its bounds. Returns the number of credited targets, or
    /// `None` if the phase changed.
    fn look_up(
        &self,
        space: NamespaceNo,
        prompt: &[NodeNo],
        matches: &mut Matches,
    ) -> Result<Option<u64>, String> {
        let chain = self.world.hashes(prompt);
        let phase = self.phase.load(SeqCst);
        let bits = |direction| {
            if direction == Direction::Grows {
                [&self.surely, &self.maybe]
            } else {
                [&self.maybe, &self.surely]
            }
        };
        let [first, last] = bits(self.direction(phase, prompt));
        let before = self.runs(first, space, prompt);
        let owners = self.owners();
        self.index.lookup_into(
            self.index.namespace_key(self.world.namespace(space)),
            &chain,
            Moment::START,
            matches,
        );
        let after = self.runs(last, space, prompt);
        // A cleared target gets another slot: then the owner of the answer's slots is unknown.
        if self.phase.load(SeqCst) != phase || self.owners() != owners {
            return Ok(None);
        }
        let mut runs = [0; TARGETS];
        let mut credited = 0;
        for (slot, run) in matches.iter() {
            let Some(Some(owner)) = owners.get(slot.0 as usize) else {
                continue;
            };
            let number = self
                .world
                .targets()
                .find(|target| target.target() == *owner);
            runs[number
                .ok_or_else(|| format!("{owner:?} was credited, and is no target"))?
                .0] = run;
            credited += 1;
        }
        for target in self.world.targets() {
            let (run, one, other) = (runs[target.0], before[target.0], after[target.0]);
            if run < one.min(other) || run > one.max(other) {
                return Err(format!(
                    "phase {phase}, {space:?}: {target:?} was credited with {run} of {} blocks, and had between {} and {}",
                    prompt.len(),
                    one.min(other),
                    one.max(other)
                ));
            }
        }
        Ok(Some(credited))
    }

    fn read(&self, seed: u64) -> Result<ReaderCounts, String> {
        let mut dice = SplitMix64::new(seed);
        let mut seen = ReaderCounts::default();
        let mut matches = Matches::default();
        while !self.over.load(SeqCst) {
            let space = self.world.space(dice.below(1 << 16));
            let prompt = self.world.prompt(space, dice.below(1 << 16));
            match self.look_up(space, prompt, &mut matches) {
                Ok(Some(credited)) => {
                    seen.compared += 1;
                    self.compared.fetch_add(1, SeqCst);
                    seen.credited += credited;
                }
                Ok(None) => seen.skipped += 1,
                Err(wrong) => {
                    self.over.store(true, SeqCst);
                    return Err(wrong);
                }
            }
        }
        Ok(seen)
    }
}

/// The single writer.
struct OracleWriter<'a> {
    shared: &'a ReaderShared,
    trial: &'a mut Trial,
    dice: SplitMix64,
}

impl OracleWriter<'_> {
    fn change(&mut self, phase: u64) -> Result<(), String> {
        let world = Arc::clone(&self.shared.world);
        let (target, space) = (
            world.target(self.dice.below(1 << 16)),
            world.space(self.dice.below(1 << 16)),
        );
        let prompt = world.prompt(space, self.dice.below(1 << 16));
        let tier = if self.dice.chance(80) {
            Tier::Device
        } else {
            Tier::Host
        };
        match self.shared.direction(phase, prompt) {
            Direction::Grows => self.grow(target, space, prompt, tier),
            Direction::Shrinks if phase % 4 == 3 && self.dice.chance(2) => {
                self.clear(target);
                Ok(())
            }
            Direction::Shrinks => self.shrink(target, space, prompt, tier),
        }
    }

    fn grow(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        prompt: &[NodeNo],
        tier: Tier,
    ) -> Result<(), String> {
        let start = if self.dice.chance(60) {
            Start::Root
        } else {
            Start::Behind
        };
        let blocks = self.dice.within(1, 200);
        let Some(range) = self
            .trial
            .stretch(target, space, prompt, start, blocks, tier)
        else {
            return Ok(());
        };
        let nodes = &prompt[range.clone()];
        let bit = 1 << target.0;
        for node in nodes {
            self.shared
                .bits(&self.shared.maybe, space, *node)
                .fetch_or(bit, SeqCst);
        }
        self.trial
            .announce(target, space, prompt, range, tier, true)?;
        for node in nodes {
            self.shared
                .bits(&self.shared.surely, space, *node)
                .fetch_or(bit, SeqCst);
        }
        Ok(())
    }

    fn shrink(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        prompt: &[NodeNo],
        tier: Tier,
    ) -> Result<(), String> {
        let pattern = match self.dice.below(10) {
            0..5 => Pattern::Tail(self.dice.within(1, 40)),
            5 => Pattern::Head(self.dice.within(1, 10)),
            6 => Pattern::Middle(self.dice.below(200), self.dice.within(1, 10)),
            7 => Pattern::Scattered(self.dice.roll()),
            _ => Pattern::All,
        };
        let nodes = self.trial.chosen(target, space, prompt, pattern, tier);
        self.while_removing(target, space, &nodes, |trial| {
            trial.discard(target, space, &nodes, tier, 0)
        })
    }

    /// Runs a removal, and updates the bits of `nodes` before and after it.
    fn while_removing<R>(
        &mut self,
        target: TargetNo,
        space: NamespaceNo,
        nodes: &[NodeNo],
        remove: impl FnOnce(&mut Trial) -> R,
    ) -> R {
        let bit = 1 << target.0;
        for node in nodes {
            self.shared
                .bits(&self.shared.surely, space, *node)
                .fetch_and(!bit, SeqCst);
        }
        let removed = remove(self.trial);
        for node in nodes {
            let has = self.trial.truth.has(target, space, *node);
            // Blocks still held in another tier were held all the time.
            let [cleared, back] = [&self.shared.maybe, &self.shared.surely]
                .map(|of| self.shared.bits(of, space, *node));
            if has {
                back.fetch_or(bit, SeqCst)
            } else {
                cleared.fetch_and(!bit, SeqCst)
            };
        }
        removed
    }

    fn clear(&mut self, target: TargetNo) {
        let bit = 1 << target.0;
        for bits in &self.shared.surely {
            bits.fetch_and(!bit, SeqCst);
        }
        self.trial.index.clear(target.target());
        self.trial.truth.clear(target);
        for bits in &self.shared.maybe {
            bits.fetch_and(!bit, SeqCst);
        }
    }
}

/// Length of a race: both numbers are reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    /// Changes by the writer.
    pub(crate) changes: u64,
    /// Compared lookups of all readers together.
    pub(crate) lookups: u64,
}

/// Runs one writer beside `readers` readers, then compares the complete content. Also returns the
/// number of changes.
pub(crate) fn race(seed: u64, length: Length, readers: u64) -> Result<(u64, ReaderCounts), String> {
    let mut dice = SplitMix64::new(seed);
    let extent = Extent {
        targets: TARGETS.min(dice.within(2, 70)),
        ..Extent::generate(&mut dice)
    };
    let mut trial = Trial::new(&Setup {
        seed,
        extent,
        tight: None,
    });
    let bits = || {
        (0..trial.world.cells())
            .map(|_| AtomicU64::new(0))
            .collect()
    };
    let shared = ReaderShared {
        surely: bits(),
        maybe: bits(),
        world: Arc::clone(&trial.world),
        index: Arc::clone(&trial.index),
        phase: AtomicU64::new(0),
        compared: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    let mut all = ReaderCounts::default();
    let mut changes = 0;
    std::thread::scope(|scope| {
        let shared = &shared;
        let read = |number: u64| scope.spawn(move || shared.read(seed ^ (number + 1) << 32));
        let readers: Vec<_> = (0..readers).map(read).collect();
        let mut writer = OracleWriter {
            shared,
            trial: &mut trial,
            dice,
        };
        let mut written = Ok(());
        let done =
            |changes| changes >= length.changes && shared.compared.load(SeqCst) >= length.lookups;
        while written.is_ok() && !shared.over.load(SeqCst) && !done(changes) {
            shared.phase.store(changes / PHASE, SeqCst);
            written = writer.change(changes / PHASE);
            changes += 1;
        }
        shared.over.store(true, SeqCst);
        for reader in readers {
            let seen = reader
                .join()
                .map_err(|_| "a reader panicked".to_owned())??;
            all += seen;
        }
        written
    })?;
    trial.finish()?;
    Ok((changes, all))
}
