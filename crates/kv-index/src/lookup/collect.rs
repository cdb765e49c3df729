//! Second half of a lookup: walks from the root to the deepest block, run by run, and finds where
//! each target's share ends, until no target is left.

use super::{
    SharedIndex,
    area::CreditedArea,
    matches::Matches,
    query::CreditSource,
    scratch::{PathStep, Scratch, WalkSlots},
};
use crate::runs::{NO_RUN, TierSpan, WHOLE};

/// The current run: the number of blocks before it, and of its own blocks on the path.
#[derive(Clone, Copy)]
struct RunPart {
    base: u32,
    limit: u32,
}

/// The structure changed during the read.
pub(super) struct TornRead;

impl SharedIndex {
    /// Extends the path from its existing step to the root.
    #[inline]
    pub(super) fn path(&self, path: &mut Vec<PathStep>) -> Result<(), TornRead> {
        loop {
            let below = path[path.len() - 1].head;
            let (run, limit) = (below.parent(), below.attach());
            if run == NO_RUN {
                return if below.depth() == 0 {
                    Ok(())
                } else {
                    Err(TornRead)
                };
            }
            path.push(PathStep {
                run,
                limit,
                ..PathStep::NONE
            });
            let at = path.len() - 1;
            let head = &mut path[at].head;
            // A run is deeper than the start of its parent, so this ends even after a torn read.
            if !self.heads.read(&self.body, run, head)
                || head.depth().wrapping_add(limit) != below.depth()
                || limit == 0
                || limit > head.blocks()
            {
                return Err(TornRead);
            }
            self.prefetch_beside(head);
        }
    }

    /// Fills `matches` with the shares of all credited targets.
    pub(super) fn collect(
        &self,
        matches: &mut Matches,
        credit: CreditSource,
        now: u64,
    ) -> Result<(), TornRead> {
        let mut scratch = std::mem::take(&mut matches.scratch);
        let done = self.walk(&mut scratch, matches, credit, now);
        matches.scratch = scratch;
        done
    }

    #[inline]
    fn walk(
        &self,
        scratch: &mut Scratch,
        matches: &mut Matches,
        credit: CreditSource,
        now: u64,
    ) -> Result<(), TornRead> {
        let Scratch {
            path, slots, spans, ..
        } = scratch;
        self.begin_walk(slots, matches.width, credit);
        for step in path.iter().rev() {
            let part = RunPart {
                base: step.head.depth(),
                limit: step.limit,
            };
            slots.pass.fill(0);
            if step.head.has_area() {
                let area = CreditedArea::of(&self.body, &step.head, credit)
                    .filter(|area| area.header.width <= matches.width)
                    .ok_or(TornRead)?;
                if area.header.spans + area.header.expected > 0 {
                    area.load_spans(now, spans);
                    slots.follow_spans(area, spans, part, matches);
                }
                slots.follow_area(area, part, matches);
            } else if credit != CreditSource::Expected {
                for number in 0..step.head.inline_holders().min(4) {
                    slots.follow(step.head.holder(number), part, matches);
                }
            }
            if !slots.end_run(part.base, matches) {
                return Ok(());
            }
        }
        let deepest = &path[0];
        matches.level(deepest.head.depth() + deepest.limit, &slots.alive);
        Ok(())
    }

    /// Sets the slots whose targets are credited.
    #[inline]
    fn begin_walk(&self, slots: &mut WalkSlots, width: usize, credit: CreditSource) {
        let trusted = credit == CreditSource::Trusted;
        slots.pass.resize(width, 0);
        slots.alive.clear();
        slots
            .alive
            .resize(width, if trusted { u64::MAX } else { 0 });
        self.doubted(|word, bits| {
            if trusted {
                slots.alive[word] &= !bits;
            } else {
                slots.alive[word] |= bits;
            }
        });
    }
}

impl WalkSlots {
    /// Follows a single holder, its slot and leading blocks: it continues, or its share ends in
    /// this run.
    #[inline]
    fn follow(&mut self, (slot, blocks): (u32, u32), part: RunPart, matches: &mut Matches) {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if word >= self.alive.len() || self.alive[word] & bit == 0 {
            return;
        }
        if blocks == WHOLE || blocks >= part.limit {
            self.pass[word] |= bit;
        } else {
            matches.single(slot, part.base + blocks);
            self.alive[word] &= !bit;
        }
    }

    /// Follows the slots that have more than a number of leading blocks on the device: finds their
    /// share of the run, and its tiers.
    fn follow_spans(
        &mut self,
        area: CreditedArea<'_>,
        spans: &[(TierSpan, u64)],
        part: RunPart,
        matches: &mut Matches,
    ) {
        for mine in spans.chunk_by(|(one, _), (next, _)| one.slot == next.slot) {
            let slot = mine[0].0.slot;
            let (word, bit) = (slot as usize / 64, 1_u64 << (slot % 64));
            if word >= self.alive.len() || self.alive[word] & bit == 0 {
                continue;
            }
            let leading = area.leading(slot).min(part.limit);
            let reach = reach_of(leading, mine, part.limit);
            if part.base + reach > 0 {
                matches.add_mixed(slot, leading, mine, reach);
            }
            if reach == part.limit {
                self.pass[word] |= bit;
            } else {
                matches.single(slot, part.base + reach);
            }
            // Done: the bits and parts of the area are about the other slots.
            self.alive[word] &= !bit;
        }
    }

    /// Follows the slots whose leading blocks are on the device.
    fn follow_area(&mut self, area: CreditedArea<'_>, part: RunPart, matches: &mut Matches) {
        if !area.credits_announced() {
            return;
        }
        let width = area.header.width;
        for number in 0..width {
            self.pass[number] |= area.whole(number) & self.alive[number];
        }
        for group in 0..area.header.groups {
            let blocks = area.group_blocks(group);
            if blocks >= part.limit {
                for number in 0..width {
                    self.pass[number] |= area.group_bits(group, number) & self.alive[number];
                }
            } else {
                matches.level_of(part.base + blocks, &mut self.alive, |number| {
                    if number < width {
                        area.group_bits(group, number)
                    } else {
                        0
                    }
                });
            }
        }
        for number in 0..area.header.parts {
            self.follow(area.part(number), part, matches);
        }
    }

    /// Ends the current run; returns whether a credited target holds all of it.
    #[inline]
    fn end_run(&mut self, base: u32, matches: &mut Matches) -> bool {
        let Self { alive, pass } = self;
        if base > 0 {
            // A slot that is alive and was not followed does not have the first block of this run.
            matches.level_of(base, alive, |number| !pass[number]);
        }
        std::mem::swap(alive, pass);
        alive.iter().any(|word| *word != 0)
    }
}

/// Returns how many blocks from the first on are covered without a gap.
fn reach_of(leading: u32, spans: &[(TierSpan, u64)], limit: u32) -> u32 {
    let mut reach = leading;
    loop {
        let before = reach;
        for (span, _) in spans {
            if span.start <= reach && span.end > reach {
                reach = span.end;
            }
        }
        if reach >= limit {
            return limit;
        }
        if reach == before {
            return reach;
        }
    }
}
