//! Settings of a view.

use std::{num::NonZeroUsize, time::Duration};

use crate::Offloading;

/// Settings of a view (`kv_cache_index`); the configuration has checked their ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewSettings {
    /// Maximum number of prefixes.
    pub max_entries: NonZeroUsize,
    /// Time after the last event for an entry, when the entry expires.
    pub entry_ttl: Duration,
    /// Whether backends have a second tier.
    pub offloading: Offloading,
    /// Bytes of a prompt that its prefix key covers (`prefix_routing.max_prefix_length`).
    pub max_prefix_length: u32,
}

impl Default for ViewSettings {
    fn default() -> Self {
        Self {
            max_entries: NonZeroUsize::new(100_000).expect("it is not 0"),
            entry_ttl: Duration::from_secs(600),
            offloading: Offloading::Off,
            max_prefix_length: 1024,
        }
    }
}

impl ViewSettings {
    /// Returns the tokens assumed for a prefix whose events had no count: about four bytes of text
    /// are a token.
    pub fn assumed_tokens(&self) -> u32 {
        self.max_prefix_length / 4
    }
}
