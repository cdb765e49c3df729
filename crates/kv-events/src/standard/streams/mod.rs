//! The order of events: each stream by its own numbers.
//!
//! An event that arrives early waits for the events in front of it; a duplicate is dropped. Events
//! that do not arrive within a bound of time, events or bytes are lost. A stream that starts again
//! from its beginning, or sends other content under a number it has used, belongs to another life
//! of its publisher.
//!
//! Not for the Mooncake store's master: it numbers the events of all media in one sequence, and
//! they arrive in the order of its batches.
//!
//! One [`StandardStreams`] serves one source, so that a source with too many streams displaces only
//! its own.

mod counts;
mod seen_events;
mod stream;

use std::{collections::BTreeMap, time::Duration};

use kv_blocks::Moment;

use super::{
    event::{EventNumber, StandardEvent, StreamKey},
    rejection::EventRejection,
};
pub use counts::OrderingCounts;
use stream::{EventArrival, OrderedOutput, StandardStream};

/// Limits of [`StandardStreams`].
#[derive(Clone, Copy, Debug)]
pub struct StandardStreamsSettings {
    /// Most streams; beyond it the one that was silent longest is dropped.
    pub max_streams: usize,
    /// Most events of one stream that wait for earlier ones.
    pub max_waiting_events: usize,
    /// Approximate limit on the bytes of all waiting events.
    pub max_waiting_bytes: usize,
    /// Longest wait of an event.
    pub max_wait: Duration,
}

impl Default for StandardStreamsSettings {
    fn default() -> Self {
        Self {
            max_streams: 4_096,
            max_waiting_events: 1_024,
            max_waiting_bytes: 16 << 20,
            max_wait: Duration::from_secs(2),
        }
    }
}

/// An output, to be carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamOutput {
    /// The next event of its stream. If it names only the depth of its blocks, and the block in
    /// front is the end of an earlier event, its `parent_hash` is filled in.
    Event(Box<StandardEvent>),
    /// Events of this stream are missing for good, or it is no longer followed: removals may be
    /// among the lost ones.
    Hole(StreamKey),
    /// The publisher restarted: the stream's earlier events are no longer true.
    Restarted(StreamKey),
}

/// The streams of one source.
#[derive(Debug)]
pub struct StandardStreams {
    settings: StandardStreamsSettings,
    streams: BTreeMap<StreamKey, StandardStream>,
    /// Streams by the ordinal of their last use.
    idle: BTreeMap<u64, StreamKey>,
    uses: u64,
    waiting_bytes: usize,
    counts: OrderingCounts,
}

impl StandardStreams {
    /// Creates an empty set of streams. A bound of 0 streams or events counts as 1.
    pub fn new(settings: StandardStreamsSettings) -> Self {
        Self {
            settings,
            streams: BTreeMap::new(),
            idle: BTreeMap::new(),
            uses: 0,
            waiting_bytes: 0,
            counts: OrderingCounts::default(),
        }
    }

    /// Takes an event on arrival. The first one of a stream may have any number.
    pub fn take(&mut self, now: Moment, event: StandardEvent) -> Vec<StreamOutput> {
        self.arrive(now, event.stream.clone(), event.event_id, Some(event))
    }

    /// Takes the number of an event that could not be read: nothing waits for it.
    pub fn take_unreadable(&mut self, now: Moment, number: EventNumber) -> Vec<StreamOutput> {
        self.arrive(now, number.stream, number.event_id, None)
    }

    fn arrive(
        &mut self,
        now: Moment,
        key: StreamKey,
        id: u64,
        event: Option<StandardEvent>,
    ) -> Vec<StreamOutput> {
        let mut out = Vec::new();
        let used = self.use_of(now, &key, id, &mut out);
        let Some(stream) = self.streams.get_mut(&key) else {
            return out;
        };
        stream.used = used;
        let before = stream.waiting_bytes();
        let mut totals = OrderedOutput {
            counts: &mut self.counts,
            out: &mut out,
        };
        if stream.is_overdue(now, self.settings.max_wait) {
            stream.give_up(now, &key, &mut totals);
        }
        match stream.arrival(id, event.as_ref()) {
            EventArrival::Next => stream.deliver(now, id, event, &mut totals),
            EventArrival::Early => {
                stream.wait(now, id, event, totals.counts);
                let others = self.waiting_bytes - before;
                while stream.waiting_events() > self.settings.max_waiting_events.max(1)
                    || stream.waiting_events() > 0
                        && others + stream.waiting_bytes() > self.settings.max_waiting_bytes
                {
                    stream.give_up(now, &key, &mut totals);
                }
            }
            EventArrival::Repeated => totals.counts.duplicates += 1,
            EventArrival::Late => totals.counts.late += 1,
            EventArrival::Reborn => {
                totals.counts.restarts += 1;
                totals.counts.late += stream.waiting_events() as u64;
                totals.out.push(StreamOutput::Restarted(key));
                stream.restart(id);
                stream.deliver(now, id, event, &mut totals);
            }
        }
        self.waiting_bytes = self.waiting_bytes - before + stream.waiting_bytes();
        out
    }

    /// Advances time: gives up on events that were missing for too long.
    pub fn tick(&mut self, now: Moment) -> Vec<StreamOutput> {
        let max_wait = self.settings.max_wait;
        self.give_up_where(now, |stream| stream.is_overdue(now, max_wait))
    }

    /// Gives up on all missing events, and accepts any later number once: the transport has lost
    /// events for good.
    pub fn accept_loss(&mut self, now: Moment) -> Vec<StreamOutput> {
        let mut out = Vec::new();
        while self
            .streams
            .values()
            .any(|stream| stream.waiting_events() > 0)
        {
            out.extend(self.give_up_where(now, |_| true));
        }
        for stream in self.streams.values_mut() {
            stream.any_later = true;
        }
        out
    }

    /// Forgets all streams: the transport begins again, or repeats events from before.
    pub fn reset(&mut self) {
        self.streams.clear();
        self.idle.clear();
        self.waiting_bytes = 0;
    }

    fn give_up_where(
        &mut self,
        now: Moment,
        is_due: impl Fn(&StandardStream) -> bool,
    ) -> Vec<StreamOutput> {
        let mut out = Vec::new();
        let mut totals = OrderedOutput {
            counts: &mut self.counts,
            out: &mut out,
        };
        for (key, stream) in &mut self.streams {
            if stream.waiting_events() > 0 && is_due(stream) {
                let before = stream.waiting_bytes();
                stream.give_up(now, key, &mut totals);
                self.waiting_bytes = self.waiting_bytes - before + stream.waiting_bytes();
            }
        }
        out
    }

    /// Counts a delivered event that was rejected. Returns true once per stream, for one log line.
    pub fn refuse(&mut self, stream: &StreamKey, why: &EventRejection) -> bool {
        self.counts.refused += 1;
        self.counts.mismatches += u64::from(matches!(why, EventRejection::Mismatch { .. }));
        self.streams
            .get_mut(stream)
            .is_some_and(|stream| !std::mem::replace(&mut stream.was_refused, true))
    }

    /// Returns the totals so far.
    pub fn counts(&self) -> OrderingCounts {
        let waiting = self
            .streams
            .values()
            .map(|stream| stream.waiting_events() as u64)
            .sum();
        OrderingCounts {
            waiting,
            streams: self.streams.len() as u64,
            ..self.counts
        }
    }

    /// Returns the totals since the last call.
    pub fn take_counts(&mut self) -> OrderingCounts {
        std::mem::take(&mut self.counts)
    }

    /// Records a use of the stream and returns its ordinal. Creates a missing stream, which may
    /// displace the one that was silent longest.
    fn use_of(
        &mut self,
        now: Moment,
        key: &StreamKey,
        event_id: u64,
        out: &mut Vec<StreamOutput>,
    ) -> u64 {
        self.uses += 1;
        if let Some(stream) = self.streams.get(key) {
            self.idle.remove(&stream.used);
        } else {
            while self.streams.len() >= self.settings.max_streams.max(1) {
                let Some((_, oldest)) = self.idle.pop_first() else {
                    break;
                };
                self.forget(now, &oldest, out);
            }
            self.streams
                .insert(key.clone(), StandardStream::new(event_id, self.uses));
        }
        self.idle.insert(self.uses, key.clone());
        self.uses
    }

    fn forget(&mut self, now: Moment, key: &StreamKey, out: &mut Vec<StreamOutput>) {
        let Some(mut stream) = self.streams.remove(key) else {
            return;
        };
        self.waiting_bytes -= stream.waiting_bytes();
        self.counts.forgotten += 1;
        let mut totals = OrderedOutput {
            counts: &mut self.counts,
            out,
        };
        while stream.waiting_events() > 0 {
            stream.give_up(now, key, &mut totals);
        }
        out.push(StreamOutput::Hole(key.clone()));
    }
}
