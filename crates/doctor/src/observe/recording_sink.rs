//! Records the batches of one publisher as the router's streams read them.

use std::sync::Arc;

use kv_blocks::{DpRank, IndexUpdate, Target, Tier, WorkerId};
use kv_events::{
    frames,
    vllm::{self, Normaliser},
};
use kv_index::KvIndex;
use net::Clock;
use tokio::sync::watch;
use zmtp::{Sub, SubEvent};

use super::publisher_observation::{LONGEST_NAME, LinkStatus, MOST_NAMES, PublisherObservation};

/// Reads a publisher and records what it announces.
pub(super) struct RecordingSink {
    pub(super) sender: watch::Sender<PublisherObservation>,
    pub(super) index: Arc<KvIndex>,
    pub(super) model: Arc<str>,
    pub(super) normaliser: Normaliser,
    pub(super) clock: Clock,
}

impl RecordingSink {
    pub(super) async fn run(mut self, mut sub: Sub) {
        loop {
            match sub.next().await {
                SubEvent::Connected { .. } => self.sender.send_modify(|observation| {
                    observation.link = LinkStatus::Connected;
                    // Batches before a reconnect do not count as missed.
                    observation.numbers.last = None;
                }),
                SubEvent::Message { frames, .. } => self.message(&frames),
                SubEvent::Disconnected { reason, .. } | SubEvent::Unreachable { reason, .. } => {
                    self.sender.send_modify(|observation| {
                        observation.link = LinkStatus::Unreachable(reason)
                    });
                }
            }
        }
    }

    fn message<F: AsRef<[u8]>>(&mut self, message: &[F]) {
        let read = frames::live(message)
            .ok()
            .and_then(|live| Some((live, vllm::decode(live.payload).ok()?)));
        let Some((live, batch)) = read else {
            return self
                .sender
                .send_modify(|observation| observation.unreadable += 1);
        };
        let topic: String = String::from_utf8_lossy(live.topic)
            .chars()
            .take(LONGEST_NAME)
            .collect();
        let now_s = self.clock.unix_ms() as f64 / 1e3;
        let mut observation = self.sender.borrow().clone();
        observation.batches += 1;
        observation.numbers.record(live.seq);
        observation.age_s = batch.ts.map(|ts| now_s - ts).or(observation.age_s);
        if let Some(rank) = batch.dp_rank
            && observation.ranks.len() < MOST_NAMES
        {
            observation.ranks.insert(rank);
        }
        let target = observation.topic(topic).map(|at| Target {
            worker: WorkerId(0),
            rank: DpRank(at),
        });
        if let Some(target) = target {
            self.index.register(target, Arc::clone(&self.model));
        }
        for event in batch.events {
            let Ok(event) = event else {
                observation.unreadable += 1;
                continue;
            };
            observation.names(&event);
            let Ok(update) = self.normaliser.update(&event) else {
                continue;
            };
            if let IndexUpdate::Stored(stored) = &update {
                observation.usable_stores += 1;
                if stored.tier == Tier::Device || observation.block_size.is_none() {
                    observation.block_size = Some(stored.block_size);
                }
            }
            if let Some(target) = target {
                self.index.apply(target, &update);
            }
        }
        // Sent last, so that a receiver finds the blocks in the index.
        self.sender.send_replace(observation);
    }
}
