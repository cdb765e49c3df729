//! One stream: the next number, and the events that wait behind a gap.

use std::{collections::BTreeMap, time::Duration};

use kv_blocks::Moment;

use super::{
    OrderingCounts, StreamOutput,
    seen_events::{LowNumber, SeenEvents},
};
use crate::standard::event::{StandardChange, StandardEvent};

#[derive(Debug)]
pub(super) struct StandardStream {
    /// The next number.
    next: u64,
    /// Events behind a gap; none has a number below `next`. `max_waiting_events` is the bound.
    waiting: BTreeMap<u64, StandardEvent>,
    waiting_bytes: usize,
    /// Start of the current wait.
    since: Moment,
    seen: SeenEvents,
    /// Whether an event of it was rejected before.
    pub(super) was_refused: bool,
    /// Ordinal of its last use.
    pub(super) used: u64,
}

/// Classification of an arriving event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventArrival {
    Next,
    Early,
    Repeated,
    Late,
    Reborn,
}

impl StandardStream {
    pub(super) fn new(first: u64, used: u64) -> Self {
        Self {
            next: first,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            since: Moment::START,
            seen: SeenEvents::default(),
            was_refused: false,
            used,
        }
    }

    /// Starts over for another life of the publisher.
    pub(super) fn begin_again(&mut self, first: u64) {
        *self = Self {
            was_refused: self.was_refused,
            ..Self::new(first, self.used)
        };
    }

    pub(super) fn waiting_events(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    pub(super) fn is_overdue(&self, now: Moment, max_wait: Duration) -> bool {
        !self.waiting.is_empty() && now.since(self.since) >= max_wait
    }

    pub(super) fn arrival(&mut self, event: &StandardEvent) -> EventArrival {
        if event.event_id == self.next {
            EventArrival::Next
        } else if self.waiting.contains_key(&event.event_id) {
            EventArrival::Repeated
        } else if event.event_id > self.next {
            EventArrival::Early
        } else {
            match self.seen.low(event) {
                LowNumber::Repeated => EventArrival::Repeated,
                LowNumber::Late => EventArrival::Late,
                LowNumber::Reborn => EventArrival::Reborn,
            }
        }
    }

    /// Delivers the next event, and the events that waited for it.
    pub(super) fn deliver(
        &mut self,
        now: Moment,
        event: StandardEvent,
        counts: &mut OrderingCounts,
        out: &mut Vec<StreamOutput>,
    ) {
        self.give_out(event, counts, out);
        while let Some(event) = self.waiting.remove(&self.next) {
            self.waiting_bytes -= weight(&event);
            self.give_out(event, counts, out);
        }
        self.since = now;
    }

    fn give_out(
        &mut self,
        mut event: StandardEvent,
        counts: &mut OrderingCounts,
        out: &mut Vec<StreamOutput>,
    ) {
        self.next = event.event_id.saturating_add(1);
        counts.delivered += 1;
        self.seen.note(&mut event);
        out.push(StreamOutput::Event(Box::new(event)));
    }

    pub(super) fn wait(&mut self, now: Moment, event: StandardEvent, counts: &mut OrderingCounts) {
        if self.waiting.is_empty() {
            self.since = now;
        }
        counts.early += 1;
        self.waiting_bytes += weight(&event);
        self.waiting.insert(event.event_id, event);
    }

    /// Gives up on the events that are missing in front of the first waiting one.
    pub(super) fn give_up(
        &mut self,
        now: Moment,
        counts: &mut OrderingCounts,
        out: &mut Vec<StreamOutput>,
    ) {
        let Some((id, event)) = self.waiting.pop_first() else {
            return;
        };
        self.waiting_bytes -= weight(&event);
        counts.lost_events += 1;
        counts.lost = counts.lost.saturating_add(id - self.next);
        out.push(StreamOutput::Hole(event.stream.clone()));
        self.deliver(now, event, counts, out);
    }
}

/// Returns the approximate bytes of a waiting event.
fn weight(event: &StandardEvent) -> usize {
    let texts = [
        &event.stream.model,
        &event.stream.salt,
        &event.stream.lora,
        &event.stream.tenant,
    ];
    let texts = texts.into_iter().chain([
        &event.stream.backend_id,
        &event.stream.medium,
        &event.object_key,
    ]);
    let blocks = match &event.change {
        StandardChange::Stored {
            seq_hashes,
            token_ids,
            ..
        } => seq_hashes.len() * 8 + token_ids.as_ref().map_or(0, |tokens| tokens.len() * 4),
        StandardChange::Removed { seq_hashes, .. } => seq_hashes.len() * 8,
        StandardChange::Cleared => 0,
    };
    size_of::<StandardEvent>() + blocks + texts.flatten().map(|text| text.len()).sum::<usize>()
}
