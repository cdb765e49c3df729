//! One stream: the next number, and the events that wait behind a gap.

use std::{collections::BTreeMap, time::Duration};

use kv_blocks::Moment;

use super::{
    OrderingCounts, StreamOutput,
    seen_events::{LowNumber, SeenEvents},
};
use crate::standard::event::{StandardChange, StandardEvent, StreamKey};

#[derive(Debug)]
pub(super) struct StandardStream {
    /// The next number.
    next: u64,
    /// Whether any later number may follow: the events in between are known to be lost.
    pub(super) any_later: bool,
    /// Events behind a gap, `None` for an unreadable one; none has a number below `next`.
    /// `max_waiting_events` is the bound.
    waiting: BTreeMap<u64, Option<StandardEvent>>,
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
            any_later: false,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            since: Moment::START,
            seen: SeenEvents::default(),
            was_refused: false,
            used,
        }
    }

    /// Starts over for another life of the publisher.
    pub(super) fn restart(&mut self, first: u64) {
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

    /// Classifies an arrival; an unreadable event has no content.
    pub(super) fn arrival(&mut self, id: u64, event: Option<&StandardEvent>) -> EventArrival {
        if id == self.next || self.any_later && id > self.next {
            EventArrival::Next
        } else if self.waiting.contains_key(&id) {
            EventArrival::Repeated
        } else if id > self.next {
            EventArrival::Early
        } else {
            match event.map(|event| self.seen.low(event)) {
                Some(LowNumber::Repeated) => EventArrival::Repeated,
                Some(LowNumber::Reborn) => EventArrival::Reborn,
                Some(LowNumber::Late) | None => EventArrival::Late,
            }
        }
    }

    /// Delivers the next event, and the events that waited for it.
    pub(super) fn deliver(
        &mut self,
        now: Moment,
        id: u64,
        event: Option<StandardEvent>,
        totals: &mut OrderedOutput<'_>,
    ) {
        self.emit(id, event, totals);
        while let Some(event) = self.waiting.remove(&self.next) {
            self.waiting_bytes -= event.as_ref().map_or(0, weight);
            self.emit(self.next, event, totals);
        }
        self.since = now;
    }

    fn emit(&mut self, id: u64, event: Option<StandardEvent>, totals: &mut OrderedOutput<'_>) {
        self.next = id.saturating_add(1);
        self.any_later = false;
        let Some(mut event) = event else { return };
        totals.counts.delivered += 1;
        self.seen.note(&mut event);
        totals.out.push(StreamOutput::Event(Box::new(event)));
    }

    pub(super) fn wait(
        &mut self,
        now: Moment,
        id: u64,
        event: Option<StandardEvent>,
        counts: &mut OrderingCounts,
    ) {
        if self.waiting.is_empty() {
            self.since = now;
        }
        counts.early += 1;
        self.waiting_bytes += event.as_ref().map_or(0, weight);
        self.waiting.insert(id, event);
    }

    /// Gives up on the events that are missing in front of the first waiting one.
    pub(super) fn give_up(&mut self, now: Moment, key: &StreamKey, totals: &mut OrderedOutput<'_>) {
        let Some((id, event)) = self.waiting.pop_first() else {
            return;
        };
        self.waiting_bytes -= event.as_ref().map_or(0, weight);
        totals.counts.lost_events += 1;
        totals.counts.lost = totals.counts.lost.saturating_add(id - self.next);
        totals.out.push(StreamOutput::Hole(key.clone()));
        self.deliver(now, id, event, totals);
    }
}

/// Takes what the streams deliver, and counts it.
pub(super) struct OrderedOutput<'a> {
    pub(super) counts: &'a mut OrderingCounts,
    pub(super) out: &'a mut Vec<StreamOutput>,
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
