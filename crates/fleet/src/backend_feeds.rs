//! Event counters by backend, summed over all its streams, of blocks and of whole prefixes.

use std::{collections::BTreeMap, sync::Arc};

use event_sources::{SourceHandle, StreamState, TierMoves};

use crate::worker_record::WorkerRecord;

/// Backends with a row of their own; the rest are summed as [`OTHER`].
const MOST_BACKENDS: usize = 1024;
const OTHER: &str = "other";

/// The streams of one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendFeed {
    /// The configured name; `other` for all beyond the first 1024.
    pub backend: Arc<str>,
    /// Events received, including dropped ones.
    pub received: u64,
    /// Events that an index applied.
    pub processed: u64,
    /// Events dropped because a buffer was full; for ZMQ, batches.
    pub dropped: u64,
    /// Connections after the first, over all streams.
    pub reconnects: u64,
    /// Counters of block streams.
    pub blocks: BlockEvents,
    /// The worst state of its streams; `None`: it has no stream.
    pub state: Option<StreamState>,
    /// Whether it has streams and all of them are connected.
    pub connected: bool,
}

/// Counters of block events by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockEvents {
    /// Events that stored blocks.
    pub stored: u64,
    /// Those of them that moved blocks between tiers.
    pub moves: TierMoves,
    /// Events that removed blocks.
    pub removed: u64,
    /// Events that cleared all blocks.
    pub cleared: u64,
}

impl BackendFeed {
    fn of(backend: Arc<str>) -> Self {
        let blocks = BlockEvents::default();
        Self {
            backend,
            received: 0,
            processed: 0,
            dropped: 0,
            reconnects: 0,
            blocks,
            state: None,
            connected: false,
        }
    }

    fn add(&mut self, source: &SourceHandle) {
        let (counts, state) = (source.report().counts, source.state());
        self.received = self
            .received
            .saturating_add(counts.events)
            .saturating_add(counts.dropped);
        self.processed = self.processed.saturating_add(counts.applied);
        self.dropped = self.dropped.saturating_add(counts.dropped);
        self.reconnects = self.reconnects.saturating_add(source.counters().reconnects);
        self.connected = is_connected(state) && (self.connected || self.state.is_none());
        self.state = Some(self.state.map_or(state, |worst| worst.worse(state)));
    }
}

/// Returns whether a stream in this state has a connection. A stream in quarantine has none.
pub(crate) fn is_connected(state: StreamState) -> bool {
    !matches!(state, StreamState::Connecting | StreamState::Quarantined)
}

/// Counters by backend while they are collected.
#[derive(Debug, Default)]
pub(crate) struct BackendFeeds(BTreeMap<Arc<str>, BackendFeed>);

impl BackendFeeds {
    /// Adds a worker and its block streams.
    pub(crate) fn worker(&mut self, entry: &WorkerRecord) {
        let feed = self.feed(&entry.view.name);
        for stream in &entry.streams {
            let counters = stream.source.counters();
            feed.blocks.stored += counters.stored;
            feed.blocks.moves.add(counters.moves);
            feed.blocks.removed += counters.removed;
            feed.blocks.cleared += counters.cleared;
            feed.add(&stream.source);
        }
    }

    /// Adds a prefix stream. The prefix view itself counts its changes.
    pub(crate) fn prefixes(&mut self, source: &SourceHandle) {
        let worker = source.report().worker;
        self.feed(&worker).add(source);
    }

    pub(crate) fn all(self) -> Vec<BackendFeed> {
        self.0.into_values().collect()
    }

    fn feed(&mut self, name: &Arc<str>) -> &mut BackendFeed {
        let own = self.0.contains_key(name) || self.0.len() < MOST_BACKENDS;
        let name = if own { Arc::clone(name) } else { OTHER.into() };
        self.0
            .entry(Arc::clone(&name))
            .or_insert_with(|| BackendFeed::of(name))
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("CK72")]
    fn backend_names_are_bounded() {
        let mut feeds = BackendFeeds::default();
        for n in 0..3 * MOST_BACKENDS {
            feeds.feed(&format!("w{n}").into()).received += 1;
        }
        let all = feeds.all();
        assert_eq!(all.len(), MOST_BACKENDS + 1);
        let other = all
            .iter()
            .find(|feed| &*feed.backend == OTHER)
            .expect("the rest");
        assert_eq!(other.received, 2 * MOST_BACKENDS as u64);
    }
}
