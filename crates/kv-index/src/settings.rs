//! Settings of an index.

use std::time::Duration;

use kv_blocks::HashScheme;

/// Settings of an index.
#[derive(Clone, Debug)]
pub struct IndexSettings {
    /// Hash scheme from tokens to block hashes.
    pub scheme: HashScheme,
    /// Maximum bytes of the index; at the limit unconfirmed entries are dropped first, then the
    /// oldest ends of chains, which are counted as shed.
    pub memory_budget: u64,
    /// Maximum speculative and predicted entries; beyond it the least recently used are pruned.
    pub prediction_max_blocks: u64,
    /// Minimum lifetime of a speculative entry while the target's stream has a loss: the lost
    /// announcement may be the one that would confirm the entry, and much of the computed content
    /// would be forgotten.
    pub unconfirmed_ttl: Duration,
    /// Share of `prediction_max_blocks` that pruning leaves, 0 to 1.
    pub prune_target_ratio: f64,
    /// A random number. With it an attacker could choose prompts, salts and names that collide in
    /// one place of a table; 0 is for tests.
    pub secret: u64,
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self {
            scheme: HashScheme::default(),
            memory_budget: 512 << 20,
            prediction_max_blocks: 1 << 20,
            unconfirmed_ttl: Duration::from_secs(120),
            prune_target_ratio: 0.8,
            secret: 0,
        }
    }
}
