//! What things are called in Redis. Other programs read them too.

use prefix_view::{PrefixHash, StorageTier};

/// What every key of the view begins with.
pub const KEY_PREFIX: &str = "cr:kvidx:";
const TIER_SUFFIX: &str = ":tier";

/// Of the sorted set: backends by tokens.
pub(super) fn holders_key(prefix: &PrefixHash) -> String {
    format!("{KEY_PREFIX}{prefix}")
}

/// Of the hash beside it: tiers by backend.
pub(super) fn tiers_key(prefix: &PrefixHash) -> String {
    format!("{KEY_PREFIX}{prefix}{TIER_SUFFIX}")
}

/// Which of the two a key is; `None`: it is none of ours.
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

/// The tier of a backend in the sorted set. Whoever has none was written by a router that knows of one tier only; a word
/// that nobody of us writes is given no more credit than the lesser tier.
pub(super) fn read_tier(text: Option<&[u8]>) -> StorageTier {
    match text {
        None | Some(b"GpuHot") => StorageTier::GpuHot,
        Some(_) => StorageTier::StorageWarm,
    }
}
