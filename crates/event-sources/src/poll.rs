//! Event lists that an engine returns once and then discards: TensorRT-LLM's
//! `POST /kv_cache_events`.
//!
//! Each poll removes the events from the engine, so an engine must have one poller only. A gap in
//! the event numbers shows a loss; the target's known blocks are dropped then.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, StatusCode, header::AUTHORIZATION};
use kv_blocks::{
    BlockSize, DpRank, IndexUpdate, Moment, NamedBlocks, StoredBlocks, Target, Tier, WorkerId,
};
use kv_events::{
    StreamState,
    trtllm::{TrtAction, TrtStream},
};
use kv_index::KvIndex;
use net::{
    Clock, WorkerUrl,
    fetch::{self, FetchError},
};
use tokio::time::sleep;

use crate::{
    SinkCounts, SourceHandle, SourceSettings,
    handle::{SourceControl, SourceInfo, StatusSender},
    quarantine::Quarantine,
    status::{StreamFault, StreamStatus},
};

/// Path of the event list, below the engine's base URL.
const PATH: &str = "/kv_cache_events";
/// Longest wait for a complete answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most ranks of one engine that are followed.
const MAX_RANKS: usize = 1_024;

/// One engine to poll.
#[derive(Clone, Debug)]
pub struct PollSpec {
    /// The worker whose caches the events describe.
    pub id: WorkerId,
    /// The worker's name.
    pub worker: Arc<str>,
    /// The model its blocks belong to.
    pub model: Arc<str>,
    /// The engine.
    pub url: WorkerUrl,
    /// Value of the `authorization` header.
    pub authorization: Option<HeaderValue>,
    /// The engine's `tokens_per_block`, which its events do not contain.
    pub block_size: BlockSize,
    /// The rank of events that name none.
    pub rank: DpRank,
    /// The wait after an answer with events.
    pub interval: Duration,
    /// Longest wait between polls; it doubles up to this while answers are empty or missing.
    pub idle_interval: Duration,
    /// Limits. Only `max_message` applies: the longest answer.
    pub settings: SourceSettings,
}

impl PollSpec {
    /// Describes an engine by its defaults: 32 tokens per block, polled every 100 ms, or every
    /// second while it is idle.
    pub fn new(
        id: WorkerId,
        worker: impl Into<Arc<str>>,
        model: impl Into<Arc<str>>,
        url: WorkerUrl,
    ) -> Self {
        Self {
            id,
            worker: worker.into(),
            model: model.into(),
            url,
            authorization: None,
            block_size: TrtStream::default_block_size(),
            rank: DpRank(0),
            interval: Duration::from_millis(100),
            idle_interval: Duration::from_secs(1),
            settings: SourceSettings::default(),
        }
    }
}

/// Polls one engine for its events.
#[derive(Debug)]
pub struct PollSource;

impl PollSource {
    /// Starts polling in a task of the current runtime, until stopped.
    pub fn spawn(spec: PollSpec, index: Arc<KvIndex>, clock: Clock) -> SourceHandle {
        let about = SourceInfo {
            kind: "poll",
            worker: Arc::clone(&spec.worker),
            rank: spec.rank.0,
            endpoint: format!("{}{PATH}", spec.url),
            replay_endpoint: None,
        };
        SourceHandle::start(about, clock, |status_sender, control| {
            Poller::new(spec, index, clock, status_sender).run(control)
        })
    }
}

/// The polling task.
#[derive(Debug)]
struct Poller {
    spec: PollSpec,
    headers: HeaderMap,
    index: Arc<KvIndex>,
    clock: Clock,
    status: StatusSender,
    stream: TrtStream,
    /// Ranks seen in events, each registered with the index.
    ranks: BTreeMap<u32, Target>,
    /// Counts of earlier streams, and of the outcomes of updates.
    past: SinkCounts,
    /// Whether the last error is about an event, not about the connection or a whole answer.
    is_error_of_events: bool,
    quarantine: Quarantine,
    state: StreamState,
    last_event_at: Option<Moment>,
    wait: Duration,
}

impl Poller {
    fn new(spec: PollSpec, index: Arc<KvIndex>, clock: Clock, status_sender: StatusSender) -> Self {
        let mut headers = HeaderMap::new();
        headers.extend(
            spec.authorization
                .clone()
                .map(|value| (AUTHORIZATION, value)),
        );
        Self {
            stream: TrtStream::new(spec.block_size),
            wait: spec.interval,
            spec,
            headers,
            index,
            clock,
            status: status_sender,
            ranks: BTreeMap::new(),
            past: SinkCounts::default(),
            is_error_of_events: false,
            quarantine: Quarantine::default(),
            state: StreamState::Connecting,
            last_event_at: None,
        }
    }

    async fn run(mut self, mut control: SourceControl) {
        loop {
            tokio::select! {
                () = self.request_events() => {}
                _ = &mut control.stop => return,
            }
            self.publish();
            let quarantined_for = self
                .quarantine
                .until()
                .map_or(Duration::ZERO, |until| until.since(self.clock.now()));
            tokio::select! {
                () = sleep(self.wait.max(quarantined_for)) => {}
                _ = &mut control.stop => return,
            }
            self.quarantine.lift();
        }
    }

    async fn request_events(&mut self) {
        let limit = self.spec.settings.max_message;
        let answer = fetch::post(&self.spec.url, PATH, &self.headers, None, TIMEOUT, limit).await;
        match answer {
            Ok(answer) if answer.status == StatusCode::OK => {
                self.state = StreamState::Live;
                self.take(&answer.body);
            }
            Ok(answer) => {
                let status = answer.status.as_u16();
                self.refused(format!(
                    "{}{PATH} answered with status {status}: expected 200 and a list; check that it is trtllm-serve with \
                     event_buffer_max_size above 0",
                    self.spec.url
                ));
            }
            Err(error) => {
                if matches!(error, FetchError::TooLarge { .. }) {
                    // The engine has already discarded the contents of this answer.
                    self.past.counts.dropped += 1;
                    self.forget();
                }
                self.refused(error.to_string());
            }
        }
    }

    fn refused(&mut self, reason: String) {
        if self.past.last_error.as_ref() != Some(&reason) {
            tracing::warn!(worker = %self.spec.worker, url = %self.spec.url, error = %reason, "no event list");
        }
        self.state = StreamState::Connecting;
        self.past.last_error = Some(reason);
        self.is_error_of_events = false;
        self.wait_longer();
    }

    fn take(&mut self, list: &[u8]) {
        let before = self.stream.counts();
        let actions = match self.stream.take(list) {
            Ok(actions) => actions,
            Err(error) => {
                self.past.unreadable(error.to_string());
                self.is_error_of_events = false;
                self.wait_longer();
                return self.judge(1);
            }
        };
        let counts = self.stream.counts();
        if counts.events == before.events {
            return self.wait_longer();
        }
        self.wait = self.spec.interval;
        self.past.counts.batches += 1;
        self.last_event_at = Some(self.clock.now());
        for action in actions {
            self.carry_out(action);
        }
        let errors = counts.malformed - before.malformed;
        if errors > 0 {
            self.past.last_error = self.stream.last_error().map(ToString::to_string);
            self.is_error_of_events = true;
            self.judge(errors);
        }
    }

    fn carry_out(&mut self, action: TrtAction) {
        match action {
            TrtAction::Apply { rank, update } => {
                let Some(target) = self.target(rank) else {
                    return;
                };
                match &update {
                    IndexUpdate::Stored(_) | IndexUpdate::Named(_) => self.past.stored += 1,
                    // A removal is sent for every possible tier; the device is one of them.
                    IndexUpdate::Removed(removed) => {
                        self.past.removed += u64::from(removed.tier == Tier::Device)
                    }
                    IndexUpdate::Cleared | IndexUpdate::ClearedTier(_) => self.past.cleared += 1,
                }
                let done = self.index.apply(target, &update);
                if let IndexUpdate::Stored(StoredBlocks { tier, .. })
                | IndexUpdate::Named(NamedBlocks { tier, .. }) = &update
                {
                    self.past.moves.record_store(*tier, &done);
                }
                self.past.counts.orphans += u64::from(done.orphans > 0);
            }
            TrtAction::Clear { rank } => {
                if let Some(target) = self.target(rank) {
                    self.index.clear(target);
                }
            }
            TrtAction::Hole { rank: Some(rank) } => {
                if let Some(target) = self.target(Some(rank)) {
                    self.index.mark_loss(target);
                }
            }
            // The rank is unknown.
            TrtAction::Hole { rank: None } => self
                .ranks
                .values()
                .for_each(|target| self.index.mark_loss(*target)),
        }
    }

    /// Returns the target of a rank. An engine without ranks has one target.
    fn target(&mut self, rank: Option<u32>) -> Option<Target> {
        let rank = rank.unwrap_or(self.spec.rank.0);
        if let Some(target) = self.ranks.get(&rank) {
            return Some(*target);
        }
        if self.ranks.len() >= MAX_RANKS {
            return None;
        }
        let target = Target {
            worker: self.spec.id,
            rank: DpRank(rank),
        };
        self.index.register(target, Arc::clone(&self.spec.model));
        self.ranks.insert(rank, target);
        Some(target)
    }

    fn forget(&mut self) {
        self.ranks
            .values()
            .for_each(|target| self.index.clear(*target));
    }

    /// Counts errors against the engine. Too many of them quarantine it.
    fn judge(&mut self, errors: u64) {
        if self.quarantine.record(self.clock.now(), errors).is_none() {
            return;
        }
        tracing::warn!(worker = %self.spec.worker, url = %self.spec.url, error = self.past.last_error,
            "event list quarantined: too many undecodable events");
        self.forget();
        self.past = self.sink_counts();
        self.stream = TrtStream::new(self.spec.block_size);
    }

    fn wait_longer(&mut self) {
        self.wait = (self.wait * 2).clamp(
            self.spec.interval,
            self.spec.idle_interval.max(self.spec.interval),
        );
    }

    /// Returns the totals so far.
    fn sink_counts(&self) -> SinkCounts {
        let mut sum = self.past.clone();
        let (counts, more) = (&mut sum.counts, self.stream.counts());
        counts.events += more.events;
        counts.applied += more.applied;
        counts.ignored += more.no_effect + more.other_window + more.unusable;
        counts.decode_errors += more.malformed;
        counts.gaps += more.overflows;
        counts.restarts += more.restarts;
        sum
    }

    /// Returns the last error. Any server may answer with a list: only one with usable events is a
    /// publisher.
    fn fault(&self, text: String, so_far: &SinkCounts) -> StreamFault {
        StreamFault {
            text,
            is_of_events: self.is_error_of_events && so_far.counts.applied > 0,
        }
    }

    fn publish(&self) {
        let mut sink_counts = self.sink_counts();
        // An orphan counts as handed over, but not as an applied event.
        sink_counts.counts.applied = sink_counts
            .counts
            .applied
            .saturating_sub(sink_counts.counts.orphans);
        self.status.publish(StreamStatus {
            state: if self.quarantine.is_active() {
                StreamState::Quarantined
            } else {
                self.state
            },
            epoch: sink_counts.counts.restarts.saturating_add(1),
            last_event_at: self.last_event_at,
            block_size: Some(self.spec.block_size.tokens()),
            last_error: (sink_counts.last_error.clone()).map(|text| self.fault(text, &sink_counts)),
            totals: sink_counts.into(),
            ..StreamStatus::default()
        });
    }
}
