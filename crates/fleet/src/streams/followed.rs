//! A running event stream, and the ranks whose caches it covers.

use event_sources::SourceHandle;
use kv_blocks::DpRank;

/// A followed event stream.
#[derive(Debug)]
pub(crate) struct FollowedStream {
    /// The ranks whose caches it covers.
    pub(crate) ranks: RankSelection,
    /// Whether missed events can be replayed.
    pub(crate) replay: bool,
    pub(crate) source: SourceHandle,
}

/// Ranks of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankSelection {
    One(DpRank),
    All,
    /// None: a store beside them.
    Beside,
}

impl RankSelection {
    pub(crate) fn include(self, rank: DpRank) -> bool {
        self == Self::One(rank) || self == Self::All
    }

    pub(crate) fn first(self) -> DpRank {
        match self {
            Self::One(rank) => rank,
            Self::All => DpRank(0),
            Self::Beside => DpRank(u32::MAX),
        }
    }
}
