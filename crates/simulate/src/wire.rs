//! The transport of the engines' events to the routers' indexes: with a delay and with losses.

use std::{sync::Arc, time::Duration};

use engine_model::CacheEvent;
use kv_blocks::{Namespace, SequenceHash, Target};
use kv_index::KvIndex;
use routing::CacheSource;

use crate::{Cell, random::SplitMix64};

/// Separates the random numbers drawn here from the router's.
const PURPOSE: u64 = 2;

/// Carries the events of all engines.
#[derive(Debug)]
pub(crate) struct Wire {
    /// One for each router.
    indexes: Vec<Arc<KvIndex>>,
    namespace: Namespace,
    /// Whether the router follows events.
    followed: bool,
    delay: Duration,
    loss: f64,
    random: SplitMix64,
    /// For each engine, whether a message was lost since the last one that arrived.
    truncated: Vec<bool>,
}

/// The events of one step of an engine.
#[derive(Debug)]
pub(crate) struct StepAnnouncement {
    from: Target,
    events: Vec<CacheEvent>,
    /// Whether a message before it is missing.
    truncated: bool,
}

impl Wire {
    pub(crate) fn new(indexes: Vec<Arc<KvIndex>>, namespace: Namespace, cell: &Cell) -> Self {
        Self {
            indexes,
            namespace,
            followed: cell.cache == CacheSource::Events,
            delay: cell.event_delay,
            loss: cell.event_loss,
            random: SplitMix64::new(cell.seed, PURPOSE),
            truncated: Vec::new(),
        }
    }

    /// Sends the events of a step; returns the message and its delay, or `None` if it is lost.
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
        let truncated = std::mem::replace(&mut self.truncated[worker], lost);
        (!lost).then_some((
            self.delay,
            StepAnnouncement {
                from,
                events,
                truncated,
            },
        ))
    }

    /// Delivers a message. A missing message before it is detected, as by its number on a real
    /// stream without replay.
    pub(crate) fn deliver(&self, message: &StepAnnouncement) {
        for index in &self.indexes {
            if message.truncated {
                index.mark_loss(message.from);
            }
            for event in &message.events {
                self.apply(index, message.from, event);
            }
        }
    }

    fn apply(&self, index: &KvIndex, from: Target, event: &CacheEvent) {
        match event {
            CacheEvent::Stored {
                hashes,
                parent,
                tier,
                ..
            } => {
                let hashes: Vec<_> = hashes.iter().map(|name| SequenceHash(name.0)).collect();
                let parent = parent.map(|name| SequenceHash(name.0));
                index.store_hashes(from, &self.namespace, parent, &hashes, *tier);
            }
            CacheEvent::Removed { hash, tier } => {
                index.remove_hashes(from, &self.namespace, &[SequenceHash(hash.0)], *tier);
            }
            CacheEvent::Cleared => index.clear(from),
        }
    }
}
