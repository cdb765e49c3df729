//! Subscribes to all topics of one publisher and reads batches as the router's streams do.

use std::{sync::Arc, time::Duration};

use config::Settings;
use fleet::EventEndpoint;
use kv_blocks::{Namespace, PromptIdentity};
use kv_events::vllm::Normaliser;
use kv_index::{IndexSettings, KvIndex};
use net::Destinations;
use tokio::{sync::watch, task::JoinHandle};
use zmtp::{Endpoint, Limits, Sub};

use super::{
    ProbeSession,
    publisher_observation::{LinkStatus, PublisherObservation},
    recording_sink::RecordingSink,
};
use crate::SCHEME;

/// Memory for one publisher's blocks, in bytes: blocks beyond it are not indexed.
const INDEX_BYTES: u64 = 8 << 20;
/// Observation of one publisher.
#[derive(Debug)]
pub(crate) struct StreamObservation {
    pub(crate) endpoint: EventEndpoint,
    /// Whether the router would follow it; otherwise only the engine announces it.
    pub(crate) followed: bool,
    pub(crate) observation: PublisherObservation,
}

/// Share of a prompt that one publisher announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnnouncedShare {
    pub(crate) topic: String,
    /// Leading blocks announced, on any medium.
    pub(crate) blocks: u32,
    /// Leading blocks announced on the device.
    pub(crate) device: u32,
    /// Whole blocks of the prompt.
    pub(crate) whole: u32,
}

/// A running listener. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct EventListener {
    pub(crate) endpoint: EventEndpoint,
    pub(crate) followed: bool,
    /// Addresses at which its sockets may be.
    pub(crate) destinations: Destinations,
    pub(crate) observation: watch::Receiver<PublisherObservation>,
    model: Arc<str>,
    /// One target per topic, so that blocks of different topics are distinguishable.
    index: Arc<KvIndex>,
    task: Option<JoinHandle<()>>,
}

impl EventListener {
    pub(crate) fn open(
        endpoint: EventEndpoint,
        followed: bool,
        settings: &Settings,
        session: ProbeSession<'_>,
    ) -> Self {
        let index = KvIndex::new(IndexSettings {
            scheme: SCHEME,
            memory_budget: INDEX_BYTES,
            ..IndexSettings::default()
        });
        let (index, model) = (Arc::new(index), Arc::clone(&session.worker_probe.base));
        let (sender, observation) = watch::channel(PublisherObservation::default());
        let limits = Limits {
            destinations: session.destinations.clone(),
            max_message: settings.kv_events.max_message,
            handshake_timeout: session.budget.events,
            ..Limits::default()
        };
        // All topics are subscribed: otherwise a wrong topic looks like a silent publisher.
        let opened = endpoint
            .endpoint
            .parse::<Endpoint>()
            .and_then(|endpoint| Sub::connect(&endpoint, &[b""], limits));
        let task = match opened {
            Ok(sub) => {
                let listener = RecordingSink {
                    sender,
                    index: Arc::clone(&index),
                    model: Arc::clone(&model),
                    normaliser: Normaliser::default(),
                    clock: session.clock,
                };
                Some(runtime::spawn(listener.run(sub)))
            }
            Err(error) => {
                sender.send_modify(|observation| {
                    observation.link = LinkStatus::Unreachable(error.to_string())
                });
                None
            }
        };
        Self {
            endpoint,
            followed,
            destinations: session.destinations.clone(),
            observation,
            model,
            index,
            task,
        }
    }

    /// Waits until the connection succeeds or fails.
    pub(crate) async fn wait_connected(&mut self, limit: Duration) {
        let decided = self
            .observation
            .wait_for(|observation| observation.link != LinkStatus::Waiting);
        // A connection still pending then shows in the link status.
        let _ = tokio::time::timeout(limit, decided).await;
    }

    pub(crate) fn connected(&self) -> bool {
        self.observation.borrow().link == LinkStatus::Connected
    }

    /// Returns how many leading blocks of `ids` were announced; `None` before the first one.
    pub(crate) fn announced(&self, ids: &[u32], lora: Option<&Arc<str>>) -> Option<AnnouncedShare> {
        let (block_size, topics) = {
            let observation = self.observation.borrow();
            (observation.block_size?, observation.topics.clone())
        };
        let namespace = Namespace {
            model: Arc::clone(&self.model),
            lora: lora.cloned(),
            salt: None,
            block_size,
            identity: PromptIdentity::Tokens,
        };
        let chain = SCHEME.chain(None, ids, block_size);
        let overlaps = self
            .index
            .lookup(&namespace, &chain, kv_blocks::Moment::START);
        let best = overlaps
            .iter()
            .max_by_key(|overlap| overlap.blocks.total())?;
        let topic = topics
            .get(best.target.rank.0 as usize)
            .cloned()
            .unwrap_or_default();
        let (blocks, device) = (best.blocks.total(), best.blocks.device);
        let whole = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        (blocks > 0).then_some(AnnouncedShare {
            topic,
            blocks,
            device,
            whole,
        })
    }

    pub(crate) fn close(mut self) -> StreamObservation {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        StreamObservation {
            endpoint: self.endpoint.clone(),
            followed: self.followed,
            observation: self.observation.borrow().clone(),
        }
    }
}

impl Drop for EventListener {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
