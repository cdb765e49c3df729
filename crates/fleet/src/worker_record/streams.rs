//! The streams of one worker, and what they mean for its view and its state machine.

use event_sources::StreamState;
use kv_blocks::{BlockSize, DpRank, Target};

use super::WorkerRecord;
use crate::{
    CacheSource, RankView,
    streams::{FollowedStream, RankSelection},
    worker_machine::{PublisherConnections, StreamSummary},
};

/// Difference between a worker's streams and its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamChange {
    pub(crate) connections: PublisherConnections,
    /// Whether the view of some rank is outdated.
    pub(crate) outdated: bool,
}

impl WorkerRecord {
    /// Returns the view of each rank.
    pub(crate) fn rank_views(&self) -> Vec<RankView> {
        let view = |(rank, _)| {
            self.stream_of(rank)
                .map_or_else(RankView::default, |stream| self.rank_view(stream, rank))
        };
        (0u32..)
            .map(DpRank)
            .zip(&self.view.ranks)
            .map(view)
            .collect()
    }

    /// Returns the stream that covers this rank.
    pub(crate) fn stream_of(&self, rank: DpRank) -> Option<&FollowedStream> {
        self.streams
            .iter()
            .find(|stream| stream.ranks.include(rank))
    }

    /// Returns the targets that some of its streams cover.
    pub(crate) fn followed_targets(&self, which: impl Fn(&FollowedStream) -> bool) -> Vec<Target> {
        self.view
            .targets()
            .filter(|target| self.stream_of(target.rank).is_some_and(&which))
            .collect()
    }

    /// Returns the targets that its streams fill, a store's among them.
    pub(crate) fn filled_targets(&self) -> Vec<Target> {
        if self.stores().next().is_some() {
            self.view.targets().collect()
        } else {
            self.followed_targets(|_| true)
        }
    }

    fn stores(&self) -> impl Iterator<Item = &FollowedStream> {
        self.streams
            .iter()
            .filter(|stream| stream.ranks == RankSelection::Beside)
    }

    /// Returns the streams of the engine itself.
    pub(crate) fn engine_streams(&self) -> impl Iterator<Item = &FollowedStream> {
        self.streams
            .iter()
            .filter(|stream| stream.ranks != RankSelection::Beside)
    }

    /// Returns a stream's part of the view. While it connects, fetches history or is distrusted,
    /// the cache is predicted; a gap being closed or a silent publisher leaves the known content
    /// usable.
    pub(crate) fn rank_view(&self, stream: &FollowedStream, rank: DpRank) -> RankView {
        let state = stream.source.state();
        let cache = match state {
            _ if self.distrusted.contains(&rank) => CacheSource::Predicted,
            StreamState::Live | StreamState::Gapped | StreamState::Stale => CacheSource::Events,
            StreamState::Connecting | StreamState::Replaying | StreamState::Quarantined => {
                CacheSource::Predicted
            }
        };
        RankView {
            cache,
            stream: Some(state.as_str()),
            replay: stream.replay,
        }
    }

    /// Returns the block size in the worker's own events, which beats its metrics: it is the size
    /// of the blocks in the index.
    pub(crate) fn announced_block_size(&self) -> Option<BlockSize> {
        let tokens = self
            .engine_streams()
            .find_map(|stream| stream.source.announced_block_size())?;
        BlockSize::new(u64::from(tokens)).ok()
    }

    /// Returns the state of its streams now, as its state machine needs it.
    pub(crate) fn stream_summary(&self) -> StreamSummary {
        let any_rank = |states: &[StreamState]| {
            let ranks = &mut self.view.ranks.iter();
            ranks.any(|rank| {
                states
                    .iter()
                    .any(|state| rank.stream == Some(state.as_str()))
            })
        };
        StreamSummary {
            any_connected: self
                .engine_streams()
                .any(|stream| stream.source.state() != StreamState::Connecting),
            any_connecting: any_rank(&[StreamState::Connecting]),
            any_coming_up: any_rank(&[StreamState::Connecting, StreamState::Replaying]),
        }
    }

    /// Compares its streams with the view.
    pub(crate) fn stream_change(&self) -> StreamChange {
        let connected = |rank: &RankView| {
            rank.stream
                .is_some_and(|state| state != StreamState::Connecting.as_str())
        };
        let mut change = StreamChange {
            connections: PublisherConnections::Same,
            outdated: false,
        };
        for stream in self.engine_streams() {
            let rank = stream.ranks.first();
            let known = self.view.ranks.get(rank.0 as usize).copied();
            let (before, now) = (known.unwrap_or_default(), self.rank_view(stream, rank));
            change.outdated |= before != now;
            match (connected(&before), connected(&now)) {
                (true, false) => change.connections = PublisherConnections::Lost,
                (false, true) if change.connections == PublisherConnections::Same => {
                    change.connections = PublisherConnections::Made
                }
                _ => {}
            }
        }
        change
    }
}
