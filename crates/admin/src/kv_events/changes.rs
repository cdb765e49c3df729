//! Names of index changes on the wire.

use kv_blocks::Tier;
use kv_events::continuum::ContinuumKind;
use kv_index::{BlockChange, ChangeKind};

/// Returns the events of each block of a change, where a block is either on the device or stored
/// elsewhere. Source: contract CK44.
///
/// A copy in another tier does not count as long as the device has the block. A block that never
/// was on the device is announced and moved at once: readers that know only one place then count it
/// as removed, the others as stored.
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

/// Returns the name of a change as a whole, where every tier counts separately.
pub(super) fn of_a_tier(change: &BlockChange) -> ContinuumKind {
    match (change.kind, change.tier) {
        (ChangeKind::Stored { elsewhere: true }, Tier::Device) => ContinuumKind::Reloaded,
        (ChangeKind::Stored { .. }, _) => ContinuumKind::Created,
        (ChangeKind::Removed { elsewhere: true }, Tier::Device) => ContinuumKind::Offloaded,
        (ChangeKind::Removed { .. }, _) if change.cleared => ContinuumKind::Purged,
        (ChangeKind::Removed { .. }, _) => ContinuumKind::Evicted,
    }
}

/// Returns the name of a tier in events.
pub(super) fn medium(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "gpu",
        Tier::Host => "cpu",
        Tier::Disk => "disk",
        Tier::Remote => "remote",
    }
}

/// Returns a part of a change, with these blocks.
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
