//! Blocks that are known by name come into a tier.

use kv_blocks::{Named, Target};

use super::{Books, budget::Room, events::count, number, removing::stretch};
use crate::{
    Applied,
    lookup::Core,
    runs::Span,
    table::{NoRoom, Spot},
};

impl Books {
    /// A target says that blocks it calls by these names are in a tier too. Names that mean nothing for certain are left out:
    /// nothing else tells what is in such a block.
    pub(crate) fn hold_named(&mut self, core: &Core, target: Target, named: &Named) -> Applied {
        let all = count(named.hashes.len());
        let Some(slot) = self.targets.find(target) else {
            return Applied {
                ignored: all,
                ..Applied::default()
            };
        };
        let mut room = Room::default();
        let mut applied = 0;
        let mut rest = &named.hashes[..];
        while !rest.is_empty() {
            let spots = self.named_spots(core, slot, rest);
            let mut full = None;
            let mut left = &spots[..];
            while let Some((at, _)) = left.first() {
                let length = stretch(left.len(), |at| left[at].1);
                let (mine, others) = left.split_at(length);
                if self.hold_in_tier(core, slot, named, mine).is_err() {
                    full = Some(*at);
                    break;
                }
                applied += count(length);
                left = others;
            }
            let Some(at) = full else { break };
            // What goes to make room may be among those that were found.
            rest = &rest[at..];
            if self.make_room(core, None, &mut room).is_err() {
                self.shed += rest.len() as u64;
                break;
            }
        }
        self.settle();
        self.stay_within_budget(core);
        let applied = applied.min(all);
        Applied {
            applied,
            orphans: 0,
            ignored: all - applied,
        }
    }

    /// The blocks that a target means by names for certain: which name, and where.
    fn named_spots(
        &mut self,
        core: &Core,
        slot: u32,
        names: &[kv_blocks::EngineHash],
    ) -> Vec<(usize, Spot)> {
        let mut found = Vec::new();
        self.names
            .resolve_any(slot, names, |at, _, resolved| found.push((at, resolved)));
        found.sort_unstable_by_key(|(at, _)| *at);
        found.retain(|(_, resolved)| {
            resolved.proven || self.writer.holds(core, resolved.spot, slot)
        });
        found
            .into_iter()
            .map(|(at, resolved)| (at, resolved.spot))
            .collect()
    }

    fn hold_in_tier(
        &mut self,
        core: &Core,
        slot: u32,
        named: &Named,
        spots: &[(usize, Spot)],
    ) -> Result<(), NoRoom> {
        let (Some((_, first)), Some((_, last))) = (spots.first(), spots.last()) else {
            return Ok(());
        };
        let (start, end) = (first.at.min(last.at), first.at.max(last.at) + 1);
        let span = Span {
            slot,
            tier: number(named.tier),
            start,
            end,
        };
        let before = self.before(core, first.run, slot);
        let trusted = self.targets.get(slot).trusted;
        let covered = self
            .writer
            .cover(core, first.run, span, trusted, &mut self.held)?;
        self.count(
            slot,
            named.tier.index(),
            i64::from(covered.in_tier),
            i64::from(covered.at_all),
        );
        self.after(core, before);
        Ok(())
    }
}
