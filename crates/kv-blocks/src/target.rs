//! The owners of KV caches: workers and their ranks.

use std::fmt;

/// An engine process, by this process's number for it. A number is never reused during the life of
/// this process, so a late message about a removed worker cannot affect its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u32);

/// A data-parallel rank inside a worker; 0 without data parallelism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DpRank(pub u32);

/// The owner of one KV cache. Blocks belong to a rank, not to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// The engine process.
    pub worker: WorkerId,
    /// The rank in it.
    pub rank: DpRank,
}

/// The phases that a worker serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Both phases.
    #[default]
    Unified,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
}

impl Role {
    /// Returns the role's name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unified => "unified",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.worker.0, self.rank.0)
    }
}
