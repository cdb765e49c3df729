//! The sink of standard-contract envelopes (RFC 1527), for the block index.

use std::sync::Arc;

use kv_blocks::Moment;
use kv_events::{
    EventError,
    standard::{
        StandardChange, StandardStreams, StandardStreamsSettings, StreamOutput, decode_json,
    },
};
use kv_index::KvIndex;

use super::{EventSink, SinkCounts, StreamMessage};
use crate::{EnvelopeOutcome, StandardSinkSpec, envelopes::EnvelopeIndex};

/// Enters the events of one source's envelopes into a [`KvIndex`], each stream in the order of its
/// numbers.
#[derive(Debug)]
pub struct StandardSink {
    spec: StandardSinkSpec,
    envelopes: EnvelopeIndex,
    streams: StandardStreams,
}

impl StandardSink {
    /// Creates the sink of one source.
    pub fn new(spec: StandardSinkSpec, index: Arc<KvIndex>) -> Self {
        Self {
            envelopes: EnvelopeIndex::new(spec.clone(), index),
            spec,
            streams: StandardStreams::new(StandardStreamsSettings::default()),
        }
    }

    fn carry_out(&mut self, ordered: Vec<StreamOutput>, sink_counts: &mut SinkCounts) {
        for next in ordered {
            let outcome = self.envelopes.take(&next);
            if let StreamOutput::Event(event) = next {
                sink_counts.last_seq = Some(event.event_id);
                sink_counts.record_envelope(&event.change, &outcome);
                if matches!(event.change, StandardChange::Stored { .. }) {
                    let tier = event.stream.medium().tier();
                    sink_counts.moves.record_store(tier, &outcome.update);
                }
            }
        }
    }

    fn take_unreadable(
        &mut self,
        mut error: EventError,
        now: Moment,
        sink_counts: &mut SinkCounts,
    ) {
        let number = error.number.take();
        sink_counts.unreadable(error.to_string());
        if let Some(mut number) = number {
            number.stream = number.stream.or(&self.spec.registration);
            let ordered = self.streams.take_unreadable(now, *number);
            self.carry_out(ordered, sink_counts);
        }
    }

    /// Adds the new counts of the streams' order to the totals.
    fn count(&mut self, sink_counts: &mut SinkCounts) {
        let more = self.streams.take_counts();
        sink_counts.counts.duplicates += more.duplicates + more.late;
        sink_counts.counts.gaps += more.lost_events;
        sink_counts.counts.lost_batches = sink_counts.counts.lost_batches.saturating_add(more.lost);
        sink_counts.counts.restarts += more.restarts;
    }
}

impl SinkCounts {
    /// Counts the outcome of an envelope.
    fn record_envelope(&mut self, change: &StandardChange, outcome: &EnvelopeOutcome) {
        if let Some(why) = &outcome.rejection {
            if why.is_contradiction() {
                return self.unreadable(why.to_string());
            }
            *self.rejected.entry(why.as_str()).or_default() += 1;
            self.counts.ignored += 1;
            self.last_error = Some(why.to_string());
            return;
        }
        *match change {
            StandardChange::Stored { .. } => &mut self.stored,
            StandardChange::Removed { .. } => &mut self.removed,
            StandardChange::Cleared => &mut self.cleared,
        } += 1;
        self.block_size = outcome.block_size.or(self.block_size);
        self.counts.rehashed += u64::from(outcome.rehashed);
        *if outcome.update.orphans > 0 {
            &mut self.counts.orphans
        } else if outcome.update.applied > 0 {
            &mut self.counts.applied
        } else {
            &mut self.counts.ignored
        } += 1;
    }
}

/// Returns whether the message is a note about the stream itself, such as the end of its current
/// state, and not an event.
fn is_note(name: &str) -> bool {
    !name.is_empty()
        && name != "message"
        && !name.starts_with("cache_")
        && !["stored", "removed", "cleared"].contains(&name)
}

impl EventSink for StandardSink {
    // Events missed while disconnected show as missing numbers, so nothing is dropped here.
    fn connected(&mut self) {
        self.envelopes.reconnected();
    }

    fn take(&mut self, message: &StreamMessage, now: Moment, sink_counts: &mut SinkCounts) {
        if message.name.as_deref().is_some_and(is_note) {
            sink_counts.counts.events += 1;
            sink_counts.counts.ignored += 1;
            return;
        }
        let events = match decode_json(&message.data) {
            Ok(events) => events,
            Err(error) => return sink_counts.unreadable(error.to_string()),
        };
        for event in events {
            sink_counts.counts.events += 1;
            match event {
                Ok(mut event) => {
                    event.stream = event.stream.or(&self.spec.registration);
                    sink_counts.counts.unlisted_media +=
                        u64::from(event.stream.has_unlisted_medium());
                    let ordered = self.streams.take(now, event);
                    self.carry_out(ordered, sink_counts);
                }
                Err(error) => self.take_unreadable(error, now, sink_counts),
            }
        }
        self.count(sink_counts);
    }

    fn tick(&mut self, now: Moment, sink_counts: &mut SinkCounts) {
        let ordered = self.streams.tick(now);
        self.carry_out(ordered, sink_counts);
        self.count(sink_counts);
    }

    fn forget(&mut self) {
        self.envelopes.forget();
        self.streams.reset();
    }
}
