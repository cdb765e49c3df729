//! The figures of an LMCache controller about a worker, and the settings of policy `lmcache_aware`.
//!
//! Values only: this module does not query the controller.

use settings::{Section, default_value};

use crate::{LmcacheSection, Policy};

/// A controller's figures about one candidate's worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LmcacheFacts {
    /// Chunks that the worker holds, of any prompts; `None`: the controller does not know it, or is
    /// unreachable.
    pub keys: Option<u64>,
    /// Leading tokens of this prompt that the worker holds; `None`: no query was made, or no answer
    /// came in time.
    pub matched_tokens: Option<u32>,
}

/// Settings of `lmcache_aware`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LmcacheSettings {
    /// Weight of the cache size against a low load, 0 to 1.
    pub cache_weight: f64,
    /// The policy that decides where the controller has no figures. For one that needs a key of the
    /// request `power_of_two` does.
    pub fallback: Policy,
}

impl Default for LmcacheSettings {
    fn default() -> Self {
        Self {
            cache_weight: default_value(LmcacheSection::KEYS, "cache_weight"),
            fallback: default_value(LmcacheSection::KEYS, "fallback"),
        }
    }
}

impl From<&LmcacheSection> for LmcacheSettings {
    fn from(section: &LmcacheSection) -> Self {
        Self {
            cache_weight: section.cache_weight,
            fallback: section.fallback,
        }
    }
}

impl LmcacheSettings {
    pub(crate) fn fallback(&self) -> Policy {
        match self.fallback {
            Policy::LmcacheAware => Policy::PowerOfTwo,
            keyed if keyed.is_keyed() => Policy::PowerOfTwo,
            fallback => fallback,
        }
    }
}
