//! Waits until the blocks of one of our requests are announced.

use std::{sync::Arc, time::Duration};

use futures_util::future::select_all;
use tokio::time::Instant;

use super::{
    Budget,
    event_listener::{AnnouncedShare, EventListener},
};

/// Announcement of a request's blocks, and its completeness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnnouncedBlocks {
    /// Index of the publisher among the listeners.
    pub(crate) stream: usize,
    /// The topic of the batch.
    pub(crate) topic: String,
    /// Whether the router would have received it: on a followed stream, under a subscribed topic.
    pub(crate) subscribed: bool,
    /// Leading blocks announced.
    pub(crate) blocks: u32,
    /// Announced blocks on the device.
    pub(crate) device: u32,
    /// Whole blocks of the prompt; 0 if its token ids are uncertain and ours were not announced.
    pub(crate) whole: u32,
    /// Whether blocks of other tokens came while only our own ids were known.
    pub(crate) foreign: bool,
    /// Time from the reply to the batch.
    pub(crate) after: Duration,
}

/// The announcement to wait for.
pub(crate) struct ExpectedAnnouncement<'a> {
    /// The prompt's token ids, as the engine has them. `None`: the engine did not report them, any
    /// store counts.
    pub(crate) ids: Option<&'a [u32]>,
    /// The ids by our tokenizer, if the engine did not report them.
    pub(crate) guess: Option<&'a [u32]>,
    /// The request's adapter.
    pub(crate) lora: Option<&'a Arc<str>>,
    /// Stores received from each publisher before.
    pub(crate) stores_before: Vec<u64>,
}

/// Returns the stores received so far from each publisher.
pub(crate) fn stores(listeners: &[EventListener]) -> Vec<u64> {
    listeners
        .iter()
        .map(|listener| listener.observation.borrow().stores)
        .collect()
}

/// Waits for the announcement, at most `limit`, and that long again once a part of it came: batches
/// may follow one another slowly. Blocks from an unwanted stream or topic, or of other tokens than
/// guessed, are accepted after a quarter of it: two sockets of one publisher do not send at the
/// same instant, and earlier requests may be announced late.
pub(crate) async fn wait(
    listeners: &[EventListener],
    announcement: &ExpectedAnnouncement<'_>,
    limit: Duration,
    budget: Budget,
) -> Option<AnnouncedBlocks> {
    let started = Instant::now();
    let mut until = started + budget.at_most(limit);
    let (mut part_seen, mut other_seen) = (false, false);
    let mut last: Option<AnnouncedBlocks> = None;
    let mut changes: Vec<_> = listeners
        .iter()
        .filter(|listener| listener.connected())
        .map(|listener| listener.observation.clone())
        .collect();
    loop {
        // Marked as seen before the lookup: later changes trigger another lookup.
        changes
            .iter_mut()
            .for_each(|change| drop(change.borrow_and_update()));
        let mut best = best(listeners, announcement, started.elapsed());
        if let (Some(best), Some(last)) = (&mut best, &last)
            && (best.stream, best.blocks, best.foreign) == (last.stream, last.blocks, last.foreign)
        {
            // Nothing new: waiting for other blocks does not make it late.
            best.after = last.after;
        }
        last.clone_from(&best);
        if let Some(arrival) = &best {
            let complete = arrival.blocks == arrival.whole;
            if complete && arrival.subscribed && !arrival.foreign {
                return best;
            }
            if complete && !other_seen {
                other_seen = true;
                until = Instant::now() + budget.at_most(limit / 4);
            } else if !complete && !part_seen {
                part_seen = true;
                until = Instant::now() + budget.at_most(limit);
            }
        }
        if changes.is_empty() || Instant::now() >= until {
            return best;
        }
        let changed = select_all(changes.iter_mut().map(|change| Box::pin(change.changed())));
        let ended = match tokio::time::timeout_at(until, changed).await {
            Ok((Err(_), at, _)) => Some(at),
            _ => None,
        };
        if let Some(at) = ended {
            // The listener has ended: no more batches come from it.
            changes.swap_remove(at);
        }
    }
}

fn best(
    listeners: &[EventListener],
    announcement: &ExpectedAnnouncement<'_>,
    after: Duration,
) -> Option<AnnouncedBlocks> {
    let arrivals = listeners
        .iter()
        .enumerate()
        .filter_map(|(stream, listener)| {
            let ids = announcement.ids.or(announcement.guess);
            let found = ids.and_then(|ids| listener.announced(ids, announcement.lora));
            let foreign = found.is_none() && announcement.guess.is_some();
            let AnnouncedShare {
                topic,
                blocks,
                device,
                whole,
            } = match found {
                Some(found) => found,
                None if announcement.ids.is_some() => return None,
                None => {
                    let observation = listener.observation.borrow();
                    let any = observation.stores
                        > announcement.stores_before.get(stream).copied().unwrap_or(0);
                    let topic = observation.topics.last().cloned().unwrap_or_default();
                    any.then_some(AnnouncedShare {
                        topic,
                        blocks: 0,
                        device: 0,
                        whole: 0,
                    })?
                }
            };
            let subscribed = listener.followed && topic.starts_with(&listener.endpoint.topic);
            Some(AnnouncedBlocks {
                stream,
                topic,
                subscribed,
                blocks,
                device,
                whole,
                foreign,
                after,
            })
        });
    arrivals.max_by_key(|arrival| (arrival.blocks > 0, arrival.subscribed, arrival.blocks))
}
