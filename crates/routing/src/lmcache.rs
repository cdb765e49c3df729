//! What a controller of LMCache says of a worker, and how policy `lmcache_aware` takes it.
//!
//! Values only: who asks the controller, and how long that may take, is not known here.

use crate::Policy;

/// What a controller says of one candidate's worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LmcacheFacts {
    /// Chunks that it holds, of whatever prompts; `None`: the controller does not know it, or is away.
    pub keys: Option<u64>,
    /// Leading tokens of this very prompt that it holds; `None`: nobody asked, or there was no answer in time.
    pub matched_tokens: Option<u32>,
}

/// Settings of `lmcache_aware`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LmcacheSettings {
    /// Weight of how much a worker holds beside how little it has to do, 0 to 1.
    pub cache_weight: f64,
    /// Who decides where the controller says nothing. One that needs a key of the request cannot: `power_of_two` does then.
    pub fallback: Policy,
}

impl Default for LmcacheSettings {
    fn default() -> Self {
        Self {
            cache_weight: 0.7,
            fallback: Policy::PowerOfTwo,
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
