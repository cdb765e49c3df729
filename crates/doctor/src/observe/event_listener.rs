//! Subscribes to all topics of one publisher and reads batches as the router's streams do.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use config::Settings;
use fleet::EventEndpoint;
use kv_blocks::{
    BlockSize, DpRank, IndexUpdate, Namespace, PromptIdentity, Target, Tier, WorkerId,
};
use kv_events::{
    frames,
    vllm::{self, Medium, Normaliser, VllmEvent},
};
use kv_index::{IndexSettings, KvIndex};
use net::Clock;
use tokio::{sync::watch, task::JoinHandle};
use zmtp::{Endpoint, Limits, Sub, SubEvent};

use super::ProbeSession;
use crate::SCHEME;

/// Memory for one publisher's blocks, in bytes: blocks beyond it are not indexed.
const INDEX_BYTES: u64 = 8 << 20;
/// Most distinct topics, media, group kinds or ranks.
const MOST_NAMES: usize = 16;
/// Longest of such names stored, in characters.
const LONGEST_NAME: usize = 200;

/// Observation of one publisher.
#[derive(Debug)]
pub(crate) struct StreamObservation {
    pub(crate) endpoint: EventEndpoint,
    /// Whether the router would follow it; otherwise only the engine announces it.
    pub(crate) followed: bool,
    pub(crate) heard: PublisherObservation,
}

/// Observations of a publisher so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PublisherObservation {
    pub(crate) link: LinkStatus,
    /// Batches that could be decoded.
    pub(crate) batches: u64,
    /// Batches and events that could not be decoded.
    pub(crate) unreadable: u64,
    /// Stores among the events, of any kind.
    pub(crate) stores: u64,
    /// Stores with token ids per block, which can be credited.
    pub(crate) usable_stores: u64,
    /// Topics, in the order of their first message.
    pub(crate) topics: Vec<String>,
    pub(crate) numbers: BatchNumbers,
    /// Ranks named by batches.
    pub(crate) ranks: BTreeSet<u32>,
    /// Tokens per block of the last device store, or of the first one elsewhere.
    pub(crate) block_size: Option<BlockSize>,
    /// Unknown media.
    pub(crate) unknown_media: BTreeSet<String>,
    /// Kinds of cache groups that do not hold every token.
    pub(crate) partial_groups: BTreeSet<String>,
    /// Age of the last batch by both clocks, in seconds; negative: its time is in the future.
    pub(crate) age_s: Option<f64>,
}

/// The numbers of a publisher's batches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BatchNumbers {
    /// The last batch's.
    pub(crate) last: Option<u64>,
    /// Missing numbers.
    pub(crate) missed: u64,
    /// Batches without a number.
    pub(crate) unnumbered: u64,
}

/// Connection state of a publisher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum LinkStatus {
    /// Not known yet.
    #[default]
    Waiting,
    Connected,
    /// Reason for the failure.
    Unreachable(String),
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
    pub(crate) heard: watch::Receiver<PublisherObservation>,
    model: Arc<str>,
    /// One target per topic, so that blocks of different topics are distinguishable.
    index: Arc<KvIndex>,
    task: Option<JoinHandle<()>>,
}

impl EventListener {
    pub(crate) fn open(
        place: EventEndpoint,
        followed: bool,
        settings: &Settings,
        session: ProbeSession<'_>,
    ) -> Self {
        let index = KvIndex::new(IndexSettings {
            scheme: SCHEME,
            memory_budget: INDEX_BYTES,
            ..IndexSettings::default()
        });
        let (index, model) = (Arc::new(index), Arc::clone(&session.meeting.base));
        let (sender, heard) = watch::channel(PublisherObservation::default());
        let limits = Limits {
            max_message: settings.kv_events.max_message,
            handshake_timeout: session.budget.events,
            ..Limits::default()
        };
        // All topics are subscribed: otherwise a wrong topic looks like a silent publisher.
        let opened = place
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
                Some(tokio::spawn(listener.run(sub)))
            }
            Err(error) => {
                sender.send_modify(|heard| heard.link = LinkStatus::Unreachable(error.to_string()));
                None
            }
        };
        Self {
            endpoint: place,
            followed,
            heard,
            model,
            index,
            task,
        }
    }

    /// Waits until the connection succeeds or fails.
    pub(crate) async fn wait_connected(&mut self, limit: Duration) {
        let settled = self
            .heard
            .wait_for(|heard| heard.link != LinkStatus::Waiting);
        // A connection still pending then shows in the link status.
        let _ = tokio::time::timeout(limit, settled).await;
    }

    pub(crate) fn connected(&self) -> bool {
        self.heard.borrow().link == LinkStatus::Connected
    }

    /// Returns how many leading blocks of `ids` were announced; `None` before the first one.
    pub(crate) fn announced(&self, ids: &[u32], lora: Option<&Arc<str>>) -> Option<AnnouncedShare> {
        let (block_size, topics) = {
            let heard = self.heard.borrow();
            (heard.block_size?, heard.topics.clone())
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
            heard: self.heard.borrow().clone(),
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

struct RecordingSink {
    sender: watch::Sender<PublisherObservation>,
    index: Arc<KvIndex>,
    model: Arc<str>,
    normaliser: Normaliser,
    clock: Clock,
}

impl RecordingSink {
    async fn run(mut self, mut sub: Sub) {
        loop {
            match sub.next().await {
                SubEvent::Connected { .. } => self.sender.send_modify(|heard| {
                    heard.link = LinkStatus::Connected;
                    // Batches before a reconnect do not count as missed.
                    heard.numbers.last = None;
                }),
                SubEvent::Message { frames, .. } => self.message(&frames),
                SubEvent::Disconnected { reason, .. } | SubEvent::Unreachable { reason } => {
                    self.sender
                        .send_modify(|heard| heard.link = LinkStatus::Unreachable(reason));
                }
            }
        }
    }

    fn message<F: AsRef<[u8]>>(&mut self, message: &[F]) {
        let read = frames::live(message)
            .ok()
            .and_then(|live| Some((live, vllm::decode(live.payload).ok()?)));
        let Some((live, batch)) = read else {
            return self.sender.send_modify(|heard| heard.unreadable += 1);
        };
        let topic: String = String::from_utf8_lossy(live.topic)
            .chars()
            .take(LONGEST_NAME)
            .collect();
        let now_s = self.clock.unix_ms() as f64 / 1e3;
        let mut heard = self.sender.borrow().clone();
        heard.batches += 1;
        heard.numbers.record(live.seq);
        heard.age_s = batch.ts.map(|ts| now_s - ts).or(heard.age_s);
        if let Some(rank) = batch.dp_rank
            && heard.ranks.len() < MOST_NAMES
        {
            heard.ranks.insert(rank);
        }
        let target = heard.topic(topic).map(|at| Target {
            worker: WorkerId(0),
            rank: DpRank(at),
        });
        if let Some(target) = target {
            self.index.register(target, Arc::clone(&self.model));
        }
        for event in batch.events {
            let Ok(event) = event else {
                heard.unreadable += 1;
                continue;
            };
            heard.names(&event);
            let Ok(update) = self.normaliser.update(&event) else {
                continue;
            };
            if let IndexUpdate::Stored(stored) = &update {
                heard.usable_stores += 1;
                if stored.tier == Tier::Device || heard.block_size.is_none() {
                    heard.block_size = Some(stored.block_size);
                }
            }
            if let Some(target) = target {
                self.index.apply(target, &update);
            }
        }
        // Sent last, so that a receiver finds the blocks in the index.
        self.sender.send_replace(heard);
    }
}

impl BatchNumbers {
    fn record(&mut self, seq: Option<u64>) {
        let Some(seq) = seq else {
            self.unnumbered += 1;
            return;
        };
        if let Some(missed) = self
            .last
            .and_then(|last| seq.checked_sub(last.saturating_add(1)))
        {
            self.missed = self.missed.saturating_add(missed);
        }
        self.last = Some(seq);
    }
}

impl PublisherObservation {
    /// Returns a topic's index in the list; `None` if the list is full.
    fn topic(&mut self, topic: String) -> Option<u32> {
        let known = self.topics.iter().position(|known| *known == topic);
        let at = known.or_else(|| {
            (self.topics.len() < MOST_NAMES).then(|| {
                self.topics.push(topic);
                self.topics.len() - 1
            })
        });
        u32::try_from(at?).ok()
    }

    fn names(&mut self, event: &VllmEvent) {
        let VllmEvent::Stored(stored) = event else {
            return;
        };
        self.stores += 1;
        let cut = |name: &str| name.chars().take(LONGEST_NAME).collect::<String>();
        let medium = stored.medium.as_deref();
        if Medium::parse(medium, stored.locality.as_deref()) == Medium::Unlisted
            && self.unknown_media.len() < MOST_NAMES
        {
            self.unknown_media.insert(cut(medium.unwrap_or_default()));
        }
        if let Some(kind) = stored.kv_cache_spec_kind.as_deref()
            && !matches!(kind, "full_attention" | "mla_attention")
            && self.partial_groups.len() < MOST_NAMES
        {
            self.partial_groups.insert(cut(kind));
        }
    }
}
