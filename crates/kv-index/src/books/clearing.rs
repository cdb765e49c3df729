//! A target is emptied, run by run.

use std::ops::Range;

use kv_blocks::{Namespace, Target, Tier};

use super::{Books, number};
use crate::{copies::Copies, lookup::Core};

/// What of a target is forgotten.
#[derive(Clone, Debug)]
pub(crate) enum Clearing {
    /// Everything it holds or is expected to hold.
    All,
    /// What it holds in one tier.
    Tier(Tier),
    /// What it holds in one tier of one namespace.
    Stream(Tier, Namespace),
    /// What it is expected to hold.
    Promises,
}

/// Runs looked at under one hold of the lock.
const SLICE: u32 = 1024;
/// Blocks after which it is given back sooner.
const SLICE_BLOCKS: u32 = 16 << 10;

impl Books {
    /// One step of forgetting, with the run to begin with; returns the one to go on with.
    pub(crate) fn clear(&mut self, core: &Core, target: Target, what: &Clearing, from: u32) -> Option<u32> {
        let slot = self.targets.find(target)?;
        if from == 0 {
            self.begin(slot, what);
        }
        let space = match what {
            Clearing::Stream(_, namespace) => Some(self.spaces.find(namespace)?),
            _ => None,
        };
        let tiers: &[u32] = match what {
            Clearing::All => &[0, 1, 2, 3],
            Clearing::Tier(tier) | Clearing::Stream(tier, _) => &[number(*tier)],
            Clearing::Promises => &[],
        };
        // A cache said to be empty is not expected to hold anything.
        let expected = match what {
            Clearing::All | Clearing::Promises => true,
            Clearing::Tier(tier) | Clearing::Stream(tier, _) => *tier == Tier::Device,
        };
        let end = self.writer.runs().min(from.saturating_add(SLICE));
        let mut room = SLICE_BLOCKS;
        for run in from..end {
            if room == 0 {
                return Some(run);
            }
            if space.is_some() && self.writer.space(run) != space {
                continue;
            }
            let before = self.before_clearing(core, run, slot);
            let gone = &mut self.gone;
            let (left, at_all) = self.writer.clear(core, run, slot, tiers, expected, &mut |blocks| gone.push(blocks));
            for (tier, blocks) in left.into_iter().enumerate() {
                self.count(slot, tier, -i64::from(blocks), 0);
                room = room.saturating_sub(blocks);
            }
            self.count(slot, 0, 0, -i64::from(at_all));
            self.after(core, before);
            if left[0] > 0 {
                self.targets.copies(slot, |copies| copies.leave_run(run));
            }
            self.settle();
        }
        (end < self.writer.runs()).then_some(end)
    }

    fn begin(&mut self, slot: u32, what: &Clearing) {
        match what {
            Clearing::All => {
                self.targets.get_mut(slot).torn = false;
                self.names.clear(slot);
                self.orphans.clear(slot);
            }
            Clearing::Tier(tier) => self.orphans.clear_tier(slot, *tier),
            Clearing::Stream(tier, namespace) => self.orphans.clear_stream(slot, namespace, *tier),
            Clearing::Promises => {}
        }
        if matches!(what, Clearing::All | Clearing::Tier(Tier::Device)) {
            // All that is counted goes: one by one it would be looked for in each run.
            self.targets.copies(slot, Copies::doubt);
        }
    }

    /// Forgets a target and all that came in since it was cleared.
    pub(crate) fn forget(&mut self, core: &Core, target: Target) {
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.clear(core, target, &Clearing::All, from);
        }
        if let Some(slot) = self.targets.find(target) {
            self.trust(core, target, true);
            self.names.leave(slot);
            self.targets.forget(slot);
            core.unassign(slot);
        }
    }

    /// What a target holds, in any tier: runs, and which of their blocks.
    pub(super) fn stretches_of(&mut self, core: &Core, slot: u32) -> Vec<(u32, Range<u32>)> {
        let mut held = Vec::new();
        for run in 0..self.writer.runs() {
            self.writer.stretches(core, run, slot, |span| held.push((run, span.start..span.end)));
        }
        held
    }
}
