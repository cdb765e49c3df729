//! The sink of messages that name whole prefixes, for the prefix view.

use std::{str, sync::Arc};

use kv_blocks::Moment;
use kv_events::continuum::ContinuumError;
use prefix_view::{
    EventKind, PrefixEvent, PrefixEventError, PrefixHashKind, PrefixIndex, RecordOutcome,
};

use super::{EventSink, SinkCounts, StreamMessage};

/// Enters the events of one backend's stream into a [`PrefixIndex`].
#[derive(Debug)]
pub struct PrefixSink {
    view: Arc<dyn PrefixIndex>,
    backend: Arc<str>,
    kind: PrefixHashKind,
}

impl PrefixSink {
    /// Creates the sink for the stream of `backend`, whose events name prefixes in this way.
    pub fn new(
        view: Arc<dyn PrefixIndex>,
        backend: impl Into<Arc<str>>,
        kind: PrefixHashKind,
    ) -> Self {
        Self {
            view,
            backend: backend.into(),
            kind,
        }
    }
}

impl EventSink for PrefixSink {
    // An eviction missed while disconnected is covered by the entry's time to live.
    fn connected(&mut self) {}

    fn take(&mut self, message: &StreamMessage, now: Moment, sink_counts: &mut SinkCounts) {
        sink_counts.counts.events += 1;
        let event = match PrefixEvent::decode(message.name.as_deref(), &message.data, self.kind) {
            Ok(event) => event,
            // A note about the stream itself, such as the end of its current state.
            Err(PrefixEventError::NoEvent(ContinuumError::UnknownKind(_))) => {
                sink_counts.counts.ignored += 1;
                return;
            }
            Err(error) => return sink_counts.unreadable(error.to_string()),
        };
        match event.kind {
            EventKind::Created | EventKind::Reloaded => sink_counts.stored += 1,
            EventKind::Evicted | EventKind::Offloaded | EventKind::Purged => {
                sink_counts.removed += 1
            }
        }
        match self.view.record(&self.backend, &event, now) {
            Ok(RecordOutcome::Stored | RecordOutcome::Dropped) => sink_counts.counts.applied += 1,
            Ok(RecordOutcome::Ignored) => sink_counts.counts.ignored += 1,
            Err(unavailable) => {
                sink_counts.counts.ignored += 1;
                sink_counts.last_error = Some(unavailable.to_string());
            }
        }
    }

    fn forget(&mut self) {
        // An unreachable view answers no lookup, and its entries end by their time to live.
        let _ = self.view.remove_backend(&self.backend);
    }
}
