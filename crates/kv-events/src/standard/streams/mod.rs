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
    event::{StandardEvent, StreamKey},
    rejection::EventRejection,
};
pub use counts::OrderingCounts;
use stream::{EventArrival, StandardStream};

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
        let mut out = Vec::new();
        let key = event.stream.clone();
        let used = self.use_of(now, &key, event.event_id, &mut out);
        let Some(stream) = self.streams.get_mut(&key) else {
            return out;
        };
        stream.used = used;
        let before = stream.waiting_bytes();
        if stream.is_overdue(now, self.settings.max_wait) {
            stream.give_up(now, &mut self.counts, &mut out);
        }
        match stream.arrival(&event) {
            EventArrival::Next => stream.deliver(now, event, &mut self.counts, &mut out),
            EventArrival::Early => {
                stream.wait(now, event, &mut self.counts);
                let others = self.waiting_bytes - before;
                while stream.waiting_events() > self.settings.max_waiting_events.max(1)
                    || stream.waiting_events() > 0
                        && others + stream.waiting_bytes() > self.settings.max_waiting_bytes
                {
                    stream.give_up(now, &mut self.counts, &mut out);
                }
            }
            EventArrival::Repeated => self.counts.duplicates += 1,
            EventArrival::Late => self.counts.late += 1,
            EventArrival::Reborn => {
                self.counts.restarts += 1;
                self.counts.late += stream.waiting_events() as u64;
                out.push(StreamOutput::Restarted(key.clone()));
                stream.begin_again(event.event_id);
                stream.deliver(now, event, &mut self.counts, &mut out);
            }
        }
        self.waiting_bytes = self.waiting_bytes - before + stream.waiting_bytes();
        out
    }

    /// Advances time: gives up on events that were missing for too long.
    pub fn tick(&mut self, now: Moment) -> Vec<StreamOutput> {
        let mut out = Vec::new();
        if self.waiting_bytes == 0 {
            return out;
        }
        for stream in self.streams.values_mut() {
            if stream.is_overdue(now, self.settings.max_wait) {
                let before = stream.waiting_bytes();
                stream.give_up(now, &mut self.counts, &mut out);
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
        while stream.waiting_events() > 0 {
            stream.give_up(now, &mut self.counts, out);
        }
        out.push(StreamOutput::Hole(key.clone()));
    }
}
