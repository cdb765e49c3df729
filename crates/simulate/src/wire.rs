//! The way of an engine's announcements to the index: they take their time, and some get lost.

use std::{sync::Arc, time::Duration};

use engine_model::CacheEvent;
use kv_blocks::{Namespace, SequenceHash, Target};
use kv_index::KvIndex;
use routing::CacheSource;

use crate::{Cell, random::SplitMix64};

/// Keeps the numbers drawn here apart from the router's.
const PURPOSE: u64 = 2;

/// Carries announcements of all engines.
#[derive(Debug)]
pub(crate) struct Wire {
    index: Arc<KvIndex>,
    namespace: Namespace,
    /// Whether anybody listens.
    followed: bool,
    delay: Duration,
    loss: f64,
    random: SplitMix64,
    /// Engines of which a message was lost since their last one arrived.
    truncated: Vec<bool>,
}

/// What one step of an engine announces.
#[derive(Debug)]
pub(crate) struct StepAnnouncement {
    from: Target,
    events: Vec<CacheEvent>,
    /// A message before it is missing.
    truncated: bool,
}

impl Wire {
    pub(crate) fn new(index: Arc<KvIndex>, namespace: Namespace, cell: &Cell) -> Self {
        Self {
            index,
            namespace,
            followed: cell.cache == CacheSource::Events,
            delay: cell.event_delay,
            loss: cell.event_loss,
            random: SplitMix64::new(cell.seed, PURPOSE),
            truncated: Vec::new(),
        }
    }

    /// Sends what a step brought; the message and how long it is under way, or nothing if it got lost on the way.
    pub(crate) fn send(
        &mut self,
        worker: usize,
        from: Target,
        events: Vec<CacheEvent>,
    ) -> Option<(Duration, StepAnnouncement)> {
        if !self.followed || events.is_empty() {
            return None;
        }
        if self.truncated.len() <= worker {
            self.truncated.resize(worker + 1, false);
        }
        let lost = self.random.unit() < self.loss;
        let torn = std::mem::replace(&mut self.truncated[worker], lost);
        (!lost).then_some((
            self.delay,
            StepAnnouncement {
                from,
                events,
                truncated: torn,
            },
        ))
    }

    /// A message arrives. One that was missing before it shows by its number, as on a real stream that cannot be
    /// replayed.
    pub(crate) fn deliver(&self, message: &StepAnnouncement) {
        if message.truncated {
            self.index.mark_loss(message.from);
        }
        for event in &message.events {
            self.apply(message.from, event);
        }
    }

    fn apply(&self, from: Target, event: &CacheEvent) {
        match event {
            CacheEvent::Stored {
                hashes,
                parent,
                tier,
                ..
            } => {
                let hashes: Vec<_> = hashes.iter().map(|name| SequenceHash(name.0)).collect();
                let parent = parent.map(|name| SequenceHash(name.0));
                self.index
                    .store_hashes(from, &self.namespace, parent, &hashes, *tier);
            }
            CacheEvent::Removed { hash, tier } => {
                self.index
                    .remove_hashes(from, &self.namespace, &[SequenceHash(hash.0)], *tier);
            }
            CacheEvent::Cleared => self.index.clear(from),
        }
    }
}
