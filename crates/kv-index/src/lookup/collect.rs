//! Second half of a lookup: walks from the root to the deepest block, run by run, and finds where
//! each target's share ends, until no target is left.

use super::{
    SharedIndex,
    matches::{Matches, MixedHolding},
    probes::ProbeRound,
};
use crate::{
    atomic::{AtomicU64, Ordering},
    runs::{AreaHeader, EXPECTED, NO_RUN, RunHead, TierSpan, WHOLE, unpack_part},
};

/// One run on the path from the root to the deepest block, and the number of its blocks on that
/// path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathStep {
    pub(super) run: u32,
    pub(super) limit: u32,
    pub(super) head: RunHead,
}

impl PathStep {
    /// An empty step.
    pub(super) const NONE: Self = Self {
        run: NO_RUN,
        limit: 0,
        head: RunHead::NONE,
    };
}

/// Buffers of a lookup.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(super) probes: ProbeRound,
    /// From the deepest run to the root.
    pub(super) path: Vec<PathStep>,
    alive: Vec<u64>,
    pass: Vec<u64>,
    irregular: Vec<(u32, u32)>,
    spans: Vec<(TierSpan, u64)>,
}

/// Targets and entries that a lookup credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CreditSource {
    /// Trusted targets: their announced and their expected blocks.
    Trusted,
    /// Untrusted targets: their announced blocks.
    Announced,
    /// Untrusted targets: their expected blocks.
    Expected,
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
        let width = matches.width;
        scratch.alive.clear();
        scratch.pass.resize(width, 0);
        scratch.alive.resize(
            width,
            if credit == CreditSource::Trusted {
                u64::MAX
            } else {
                0
            },
        );
        self.doubted(|word, bits| match credit {
            CreditSource::Trusted => scratch.alive[word] &= !bits,
            CreditSource::Announced | CreditSource::Expected => scratch.alive[word] |= bits,
        });
        for number in (0..scratch.path.len()).rev() {
            let step = scratch.path[number];
            let any = if step.head.has_area() {
                self.area(step, scratch, matches, credit, now)?
            } else {
                inline(step, scratch, matches, credit)
            };
            if !any {
                return Ok(());
            }
        }
        let deepest = scratch.path[0];
        let depth = deepest.head.depth() + deepest.limit;
        matches.level(depth, &scratch.alive);
        Ok(())
    }

    /// Processes a run whose holders are in an area; returns whether a credited target holds all of
    /// it.
    fn area(
        &self,
        step: PathStep,
        scratch: &mut Scratch,
        matches: &mut Matches,
        credit: CreditSource,
        now: u64,
    ) -> Result<bool, TornRead> {
        let (line, words) = step.head.area();
        let area = self.body.words(line, words).ok_or(TornRead)?;
        let word = |at: usize| area[at].load(Ordering::Relaxed);
        let title = AreaHeader::decode(word(0));
        // The run's version in the end checks everything read from here on; this only limits the
        // range.
        if title.words() != words || title.width > matches.width || words == 0 {
            return Err(TornRead);
        }
        let (base, limit) = (step.head.depth(), step.limit);
        let Scratch {
            alive,
            pass,
            irregular,
            spans,
            ..
        } = scratch;
        pass.fill(0);
        irregular.clear();
        if title.spans + title.expected > 0 {
            load_spans(area, title, credit, now, spans);
            crooked(
                area, title, spans, alive, credit, limit, irregular, base, matches,
            );
            for (slot, reach) in irregular.iter() {
                if *reach == limit {
                    pass[*slot as usize / 64] |= 1 << (slot % 64);
                } else {
                    matches.single(*slot, base + reach);
                }
                // Done: the bits and parts below are about the other slots.
                alive[*slot as usize / 64] &= !(1 << (slot % 64));
            }
        }
        if credit != CreditSource::Expected {
            for at in 0..title.width {
                pass[at] |= word(1 + at) & alive[at];
            }
            for group in 0..title.groups {
                let at = title.groups_at() + group * (1 + title.width);
                let cut = word(at) as u32;
                if cut >= limit {
                    for number in 0..title.width {
                        pass[number] |= word(at + 1 + number) & alive[number];
                    }
                } else {
                    matches.level_of(base + cut, alive, |number| {
                        if number < title.width {
                            word(at + 1 + number)
                        } else {
                            0
                        }
                    });
                }
            }
            for part in 0..title.parts {
                let packed = (word(title.parts_at() + part / 2) >> (32 * (part % 2))) as u32;
                single(unpack_part(packed), limit, base, alive, pass, matches);
            }
        }
        if base > 0 {
            // A slot that is alive and not processed above does not have the first block of this
            // run.
            matches.level_of(base, alive, |number| !pass[number]);
        }
        std::mem::swap(alive, pass);
        Ok(alive.iter().any(|word| *word != 0))
    }
}

/// Processes a run whose few holders are in its head.
#[inline]
fn inline(
    step: PathStep,
    scratch: &mut Scratch,
    matches: &mut Matches,
    credit: CreditSource,
) -> bool {
    let Scratch { alive, pass, .. } = scratch;
    let base = step.head.depth();
    pass.fill(0);
    if credit != CreditSource::Expected {
        for number in 0..step.head.inline_holders().min(4) {
            single(
                step.head.holder(number),
                step.limit,
                base,
                alive,
                pass,
                matches,
            );
        }
    }
    if base > 0 {
        matches.level_of(base, alive, |number| !pass[number]);
    }
    std::mem::swap(alive, pass);
    alive.iter().any(|word| *word != 0)
}

/// Processes a single holder: it continues, or its share ends in this run.
#[inline]
fn single(
    (slot, cut): (u32, u32),
    limit: u32,
    base: u32,
    alive: &mut [u64],
    pass: &mut [u64],
    matches: &mut Matches,
) {
    let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
    if word >= alive.len() || alive[word] & bit == 0 {
        return;
    }
    if cut == WHOLE || cut >= limit {
        pass[word] |= bit;
    } else {
        matches.single(slot, base + cut);
        alive[word] &= !bit;
    }
}

/// Loads the credited spans, by slot and beginning.
fn load_spans(
    area: &[AtomicU64],
    title: AreaHeader,
    credit: CreditSource,
    now: u64,
    spans: &mut Vec<(TierSpan, u64)>,
) {
    spans.clear();
    let word = |at: usize| area[at].load(Ordering::Relaxed);
    if credit != CreditSource::Expected {
        spans.extend(
            (title.spans_at()..title.expected_at())
                .map(|at| (TierSpan::decode(word(at)), u64::MAX)),
        );
    }
    if credit != CreditSource::Announced {
        for number in 0..title.expected {
            let at = title.expected_at() + 3 * number;
            if word(at + 1) > now {
                spans.push((TierSpan::decode(word(at)), word(at + 1)));
            }
        }
    }
    spans.sort_unstable();
}

/// Computes the share of slots that have more than a number of leading blocks on the device, and
/// its tiers.
#[expect(
    clippy::too_many_arguments,
    reason = "one step of a walk, split off for its length"
)]
fn crooked(
    area: &[AtomicU64],
    title: AreaHeader,
    spans: &[(TierSpan, u64)],
    alive: &[u64],
    credit: CreditSource,
    limit: u32,
    irregular: &mut Vec<(u32, u32)>,
    base: u32,
    matches: &mut Matches,
) {
    let mut rest = spans;
    while let Some((first, _)) = rest.first() {
        let slot = first.slot;
        let count = rest
            .iter()
            .take_while(|(span, _)| span.slot == slot)
            .count();
        let (mine, others) = rest.split_at(count);
        rest = others;
        let (word, bit) = (slot as usize / 64, 1_u64 << (slot % 64));
        if word >= alive.len() || alive[word] & bit == 0 {
            continue;
        }
        let leading = if credit == CreditSource::Expected {
            0
        } else {
            leading(area, title, slot).min(limit)
        };
        let reach = reach_of(leading, mine, limit);
        if base + reach > 0 {
            matches.add_mixed(slot, leading, mine, reach);
        }
        irregular.push((slot, reach));
    }
}

/// Returns the leading blocks on the device, or `WHOLE`.
fn leading(area: &[AtomicU64], title: AreaHeader, slot: u32) -> u32 {
    let word = |at: usize| area[at].load(Ordering::Relaxed);
    let (number, bit) = (slot as usize / 64, 1 << (slot % 64));
    if number < title.width {
        if word(1 + number) & bit != 0 {
            return WHOLE;
        }
        for group in 0..title.groups {
            let at = title.groups_at() + group * (1 + title.width);
            if word(at + 1 + number) & bit != 0 {
                return word(at) as u32;
            }
        }
    }
    (0..title.parts)
        .map(|part| unpack_part((word(title.parts_at() + part / 2) >> (32 * (part % 2))) as u32))
        .find(|(holder, _)| *holder == slot)
        .map_or(0, |(_, cut)| cut)
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

impl Matches {
    #[inline]
    fn single(&mut self, slot: u32, depth: u32) {
        if depth > 0 {
            self.singles.push((slot, depth));
        }
    }

    /// Ends the shares of all slots in `alive` at `depth`.
    #[inline]
    fn level(&mut self, depth: u32, alive: &[u64]) {
        if alive.iter().any(|word| *word != 0) {
            self.depths.push(depth);
            self.bits.extend_from_slice(alive);
        }
    }

    /// Ends the shares of the slots in `alive` and `bits` at `depth`; they leave `alive`.
    #[inline]
    fn level_of(&mut self, depth: u32, alive: &mut [u64], bits: impl Fn(usize) -> u64) {
        let any = alive
            .iter()
            .enumerate()
            .fold(0, |any, (number, alive)| any | *alive & bits(number));
        if any == 0 {
            return;
        }
        if depth > 0 {
            self.depths.push(depth);
            self.bits.extend(
                alive
                    .iter()
                    .enumerate()
                    .map(|(number, alive)| *alive & bits(number)),
            );
        }
        for (number, alive) in alive.iter_mut().enumerate() {
            *alive &= !bits(number);
        }
    }

    /// Records the tiers of the first `reach` blocks of a slot's share in one run, unless they are
    /// only on the device.
    fn add_mixed(&mut self, slot: u32, leading: u32, spans: &[(TierSpan, u64)], reach: u32) {
        let at = self
            .mixed
            .iter()
            .position(|mixed| mixed.slot == slot)
            .unwrap_or_else(|| {
                self.mixed.push(MixedHolding {
                    slot,
                    best: [0; 5],
                    present: [0; 4],
                });
                self.mixed.len() - 1
            });
        let mixed = &mut self.mixed[at];
        // Nothing changes between two borders, so one check each is enough.
        let mut from = 0;
        while from < reach {
            let borders = spans
                .iter()
                .flat_map(|(span, _)| [span.start, span.end])
                .chain([leading]);
            let to = borders
                .filter(|border| *border > from)
                .min()
                .unwrap_or(reach)
                .min(reach);
            let mut tiers = u32::from(from < leading);
            for (span, _) in spans
                .iter()
                .filter(|(span, _)| span.start <= from && from < span.end)
            {
                tiers |= 1 << span.tier;
            }
            let best = tiers.trailing_zeros();
            if best > 0 {
                mixed.best[best as usize] += to - from;
            }
            for (tier, present) in mixed.present.iter_mut().enumerate().skip(1) {
                *present += if tiers >> tier & 1 == 1 { to - from } else { 0 };
            }
            debug_assert!(
                tiers != 0 && best <= EXPECTED,
                "within reach every block is somewhere"
            );
            from = to;
        }
    }
}
