//! Converts the matches of a lookup to the overlap of each target, by tier.

use std::cell::Cell;

use kv_blocks::Target;

use crate::{
    Matches, Overlap, TierBlocks,
    atomic::Ordering,
    lookup::{ChainQuery, CreditSource, MixedHolding, SharedIndex},
};

thread_local! {
    /// Buffers of lookups, with their learned probe positions.
    static SCRATCH: Cell<Matches> = Cell::default();
}

/// Returns every target that holds, or announced, at least the first block of the chain, in the
/// order of targets.
pub(crate) fn overlaps(core: &SharedIndex, query: ChainQuery<'_>) -> Vec<Overlap> {
    let mut matches = SCRATCH.take();
    let mut overlaps = Vec::new();
    loop {
        let assignments = core.assignments.load(Ordering::Acquire);
        core.lookup(query, CreditSource::Trusted, &mut matches);
        each(core, &matches, |target, blocks, present| {
            overlaps.push(Overlap {
                target,
                blocks,
                announced: blocks,
                present,
            });
        });
        if core.doubts.load(Ordering::Acquire) > 0 {
            doubted(core, query, &mut matches, &mut overlaps);
        }
        // A slot reassigned meanwhile would credit one target with the blocks of another.
        if core.assignments.load(Ordering::Acquire) == assignments {
            break;
        }
        overlaps.clear();
    }
    SCRATCH.set(matches);
    overlaps.sort_unstable_by_key(|overlap| overlap.target);
    overlaps
}

/// Adds untrusted targets, with their expected and their announced blocks.
fn doubted(
    core: &SharedIndex,
    query: ChainQuery<'_>,
    matches: &mut Matches,
    overlaps: &mut Vec<Overlap>,
) {
    let trusted = overlaps.len();
    core.lookup(query, CreditSource::Expected, matches);
    each(core, matches, |target, blocks, present| {
        overlaps.push(Overlap {
            target,
            blocks,
            announced: TierBlocks::default(),
            present,
        });
    });
    core.lookup(query, CreditSource::Announced, matches);
    each(core, matches, |target, announced, _| {
        match overlaps[trusted..]
            .iter_mut()
            .find(|overlap| overlap.target == target)
        {
            Some(overlap) => overlap.announced = announced,
            None => overlaps.push(Overlap {
                target,
                blocks: TierBlocks::default(),
                announced,
                present: [0; 4],
            }),
        }
    });
}

fn each(
    core: &SharedIndex,
    matches: &Matches,
    mut visit: impl FnMut(Target, TierBlocks, [u32; 4]),
) {
    matches.each(|slot, depth| {
        let Some(target) = core.target(slot.0) else {
            return;
        };
        let mixed = matches.mixed.iter().find(|mixed| mixed.slot == slot.0);
        let (blocks, present) = by_tier(depth, mixed);
        visit(target, blocks, present);
    });
}

fn by_tier(depth: u32, mixed: Option<&MixedHolding>) -> (TierBlocks, [u32; 4]) {
    let Some(MixedHolding { best, present, .. }) = mixed else {
        return (
            TierBlocks {
                device: depth,
                ..TierBlocks::default()
            },
            [depth, 0, 0, 0],
        );
    };
    let device = depth - best.iter().sum::<u32>();
    let [_, host, disk, remote, speculative] = *best;
    let blocks = TierBlocks {
        device,
        host,
        disk,
        remote,
        speculative,
    };
    (blocks, [device, present[1], present[2], present[3]])
}
