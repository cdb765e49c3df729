//! Who owns a cache.

use std::fmt;

/// An engine process, as this process numbers it. Numbers are never used twice in a process's life, so a late message
/// about a removed worker cannot hit its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u32);

/// A data-parallel rank inside a worker; 0 without data parallelism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DpRank(pub u32);

/// The owner of a cache: ranks hold blocks, not processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// The engine process.
    pub worker: WorkerId,
    /// The rank in it.
    pub rank: DpRank,
}

/// Which phases a worker serves.
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
    /// The configuration's word for it.
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
