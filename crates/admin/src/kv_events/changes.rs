//! What a change of the index is called on the wire.

use kv_blocks::Tier;
use kv_events::continuum::ContinuumKind;
use kv_index::{BlockChange, ChangeKind};

/// The events of each block of a change, where a block is either at hand or stored elsewhere. Source: contract CK44.
///
/// A copy in another tier is none as long as the device has the block. A block that never was on the device comes as one
/// that was moved right away: readers that know one place only then count it as gone, the others as stored.
pub(super) fn of_a_block(change: &BlockChange) -> &'static [ContinuumKind] {
    use ContinuumKind::{Created, Evicted, Offloaded, Purged, Reloaded};
    match (change.kind, change.tier) {
        (ChangeKind::Stored { elsewhere: false }, Tier::Device) => &[Created],
        (ChangeKind::Stored { elsewhere: false }, _) => &[Created, Offloaded],
        (ChangeKind::Stored { elsewhere: true }, Tier::Device) => &[Reloaded],
        (ChangeKind::Removed { elsewhere: true }, Tier::Device) => &[Offloaded],
        (ChangeKind::Stored { elsewhere: true } | ChangeKind::Removed { elsewhere: true }, _) => {
            &[]
        }
        (ChangeKind::Removed { elsewhere: false }, _) if change.cleared => &[Purged],
        (ChangeKind::Removed { elsewhere: false }, _) => &[Evicted],
    }
}

/// The name of a change as a whole, where every tier counts for itself.
pub(super) fn of_a_tier(change: &BlockChange) -> ContinuumKind {
    match (change.kind, change.tier) {
        (ChangeKind::Stored { elsewhere: true }, Tier::Device) => ContinuumKind::Reloaded,
        (ChangeKind::Stored { .. }, _) => ContinuumKind::Created,
        (ChangeKind::Removed { elsewhere: true }, Tier::Device) => ContinuumKind::Offloaded,
        (ChangeKind::Removed { .. }, _) if change.cleared => ContinuumKind::Purged,
        (ChangeKind::Removed { .. }, _) => ContinuumKind::Evicted,
    }
}

/// A tier as events name it.
pub(super) fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "gpu",
        Tier::Host => "cpu",
        Tier::Disk => "disk",
        Tier::Remote => "remote",
    }
}

/// Some of a change's blocks.
pub(super) fn part(change: &BlockChange, blocks: std::ops::Range<usize>) -> BlockChange {
    let parent = blocks
        .start
        .checked_sub(1)
        .map_or(change.parent, |before| Some(change.hashes[before]));
    BlockChange {
        depth: change
            .depth
            .saturating_add(u32::try_from(blocks.start).unwrap_or(u32::MAX)),
        parent,
        hashes: change.hashes[blocks].to_vec(),
        namespace: std::sync::Arc::clone(&change.namespace),
        ..*change
    }
}
