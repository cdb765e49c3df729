//! Key names in Redis. Other programs read them too.

use prefix_view::{PrefixHash, StorageTier};

/// Prefix of every key of the view.
pub const KEY_PREFIX: &str = "cr:kvidx:";
const TIER_SUFFIX: &str = ":tier";

/// Returns the key of the sorted set: backends by tokens.
pub(super) fn holders_key(prefix: &PrefixHash) -> String {
    format!("{KEY_PREFIX}{prefix}")
}

/// Returns the key of the hash beside it: tiers by backend.
pub(super) fn tiers_key(prefix: &PrefixHash) -> String {
    format!("{KEY_PREFIX}{prefix}{TIER_SUFFIX}")
}

/// Returns whether a key belongs to a hash of tiers; `None` if it is not a key of the view.
pub(super) fn is_of_tiers(key: &[u8]) -> Option<bool> {
    key.starts_with(KEY_PREFIX.as_bytes())
        .then(|| key.ends_with(TIER_SUFFIX.as_bytes()))
}

pub(super) fn tier_text(tier: StorageTier) -> &'static str {
    match tier {
        StorageTier::GpuHot => "GpuHot",
        StorageTier::StorageWarm => "StorageWarm",
    }
}

/// Returns the tier of a backend in the sorted set. A backend without one was written by a router
/// without a second tier; an unknown tier counts as the lesser tier.
pub(super) fn read_tier(text: Option<&[u8]>) -> StorageTier {
    match text {
        None | Some(b"GpuHot") => StorageTier::GpuHot,
        Some(_) => StorageTier::StorageWarm,
    }
}
