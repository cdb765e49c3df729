//! The order of events: each stream by its own numbers.
//!
//! An event that comes early waits for those in front of it; one that came before is dropped. What does not come within a
//! bound of time, events or bytes is a hole. A stream that begins again from its beginning, or says something else under a
//! number it has used, is one of another life of its publisher.
//!
//! Not for the Mooncake store's master: it numbers the events of all media in one row, and they come in the order of its
//! batches.
//!
//! One `Streams` is for one source, so that a source with too many streams crowds out none but its own.

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

/// Bounds of [`Streams`].
#[derive(Clone, Copy, Debug)]
pub struct StandardStreamsSettings {
    /// Streams followed at once; beyond it the one that was silent longest is forgotten.
    pub max_streams: usize,
    /// Events of one stream that wait for those in front of them.
    pub max_waiting_events: usize,
    /// Bytes of all events that wait, about.
    pub max_waiting_bytes: usize,
    /// How long an event waits.
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

/// What comes out, to be done in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamOutput {
    /// The next event of its stream. Where it only said how deep its blocks are, and the block in front was the end of an
    /// earlier event, it has that as `parent_hash` now.
    Event(Box<StandardEvent>),
    /// Events of this stream are missing for good, or it is no longer followed: removals may be among what was lost.
    Hole(StreamKey),
    /// The publisher started again: what the stream said before is no longer true.
    Restarted(StreamKey),
}

/// The streams of one source.
#[derive(Debug)]
pub struct StandardStreams {
    settings: StandardStreamsSettings,
    streams: BTreeMap<StreamKey, StandardStream>,
    /// By when they were last used.
    idle: BTreeMap<u64, StreamKey>,
    uses: u64,
    waiting_bytes: usize,
    counts: OrderingCounts,
}

impl StandardStreams {
    /// No stream yet. A bound of 0 streams or events counts as 1.
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

    /// Takes an event as it arrives. The first one of a stream may have any number.
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

    /// Time went by: what waited for too long waits no more.
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

    /// Counts an event that came out and was refused. True once per stream: then somebody should be told why.
    pub fn refuse(&mut self, stream: &StreamKey, why: &EventRejection) -> bool {
        self.counts.refused += 1;
        self.counts.mismatches += u64::from(matches!(why, EventRejection::Mismatch { .. }));
        self.streams
            .get_mut(stream)
            .is_some_and(|stream| !std::mem::replace(&mut stream.was_refused, true))
    }

    /// Totals so far.
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

    /// Makes sure that there is such a stream, which may cost the one that was silent longest its place.
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
