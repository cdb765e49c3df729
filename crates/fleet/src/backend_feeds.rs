//! What event streams said, by backend: all streams of one together, whether they tell of blocks or of whole prefixes.

use std::{collections::BTreeMap, sync::Arc};

use event_sources::{SourceHandle, StreamState};

use crate::worker_record::WorkerRecord;

/// Backends with a row of their own; the rest are summed as [`OTHER`].
const MOST_BACKENDS: usize = 1024;
const OTHER: &str = "other";

/// The streams of one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendFeed {
    /// Its configured name; `other` for all those beyond the first 1024.
    pub backend: Arc<str>,
    /// Events that came, those included that were let go.
    pub received: u64,
    /// Events that an index took.
    pub processed: u64,
    /// Events, of ZMQ batches of them, that were let go because a buffer was full.
    pub dropped: u64,
    /// Connections after the first, of all streams.
    pub reconnects: u64,
    /// Of streams that tell of blocks.
    pub blocks: BlockEvents,
    /// Of several streams the worst state; `None`: it has no stream.
    pub state: Option<StreamState>,
    /// Whether it has streams, and each of them a connection.
    pub connected: bool,
}

/// Events that tell of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockEvents {
    /// Blocks came in.
    pub stored: u64,
    /// Blocks went.
    pub removed: u64,
    /// All blocks went.
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

/// Whether a stream in this state has a connection. In quarantine it is closed.
pub(crate) fn is_connected(state: StreamState) -> bool {
    !matches!(state, StreamState::Connecting | StreamState::Quarantined)
}

/// Feeds while they are read.
#[derive(Debug, Default)]
pub(crate) struct BackendFeeds(BTreeMap<Arc<str>, BackendFeed>);

impl BackendFeeds {
    /// A worker, and its streams of blocks.
    pub(crate) fn worker(&mut self, entry: &WorkerRecord) {
        let feed = self.feed(&entry.view.name);
        for stream in &entry.streams {
            let counters = stream.source.counters();
            feed.blocks.stored += counters.stored;
            feed.blocks.removed += counters.removed;
            feed.blocks.cleared += counters.cleared;
            feed.add(&stream.source);
        }
    }

    /// A stream of prefixes. What it changed the view tells.
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
    fn however_many_backends_there_are_their_names_are_bounded() {
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
