//! Lists of events that an engine gives out once and forgets: TensorRT-LLM's `POST /kv_cache_events`.
//!
//! Asking takes the events away, so there must be one asker only. What is lost on the way is missed by the next event's
//! number, and what the engine is known to hold is dropped then.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, StatusCode, header::AUTHORIZATION};
use kv_blocks::{BlockSize, DpRank, IndexUpdate, Moment, Target, Tier, WorkerId};
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
    status::StreamStatus,
};

/// Where the engine gives out its events, below its base URL.
const PATH: &str = "/kv_cache_events";
/// Longest wait for a whole answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Ranks of one engine that are followed.
const MAX_RANKS: usize = 1_024;

/// One engine to ask.
#[derive(Clone, Debug)]
pub struct PollSpec {
    /// The worker whose caches it speaks of.
    pub id: WorkerId,
    /// Its name.
    pub worker: Arc<str>,
    /// The model its blocks belong to.
    pub model: Arc<str>,
    /// The engine.
    pub url: WorkerUrl,
    /// What the `authorization` header says, if anything.
    pub authorization: Option<HeaderValue>,
    /// The engine's `tokens_per_block`: its events do not say.
    pub block_size: BlockSize,
    /// The wait after an answer with events.
    pub interval: Duration,
    /// The longest wait: it doubles up to this while there are none, or no answer.
    pub idle_interval: Duration,
    /// Limits. Of these counts `max_message`, the longest answer.
    pub settings: SourceSettings,
}

impl PollSpec {
    /// An engine of which nothing but this is known: 32 tokens per block, asked every 100 ms, or every second while it is
    /// idle.
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
            interval: Duration::from_millis(100),
            idle_interval: Duration::from_secs(1),
            settings: SourceSettings::default(),
        }
    }
}

/// Asks one engine for its events, again and again.
#[derive(Debug)]
pub struct PollSource;

impl PollSource {
    /// Starts asking, in a task of the current runtime, until stopped.
    pub fn spawn(spec: PollSpec, index: Arc<KvIndex>, clock: Clock) -> SourceHandle {
        let about = SourceInfo {
            kind: "poll",
            worker: Arc::clone(&spec.worker),
            rank: 0,
            endpoint: format!("{}{PATH}", spec.url),
            replay_endpoint: None,
        };
        SourceHandle::start(about, clock, |outlet, orders| {
            Poller::new(spec, index, clock, outlet).run(orders)
        })
    }
}

/// The task behind it.
#[derive(Debug)]
struct Poller {
    spec: PollSpec,
    headers: HeaderMap,
    index: Arc<KvIndex>,
    clock: Clock,
    status: StatusSender,
    stream: TrtStream,
    /// The ranks that events spoke of, known to the index.
    ranks: BTreeMap<u32, Target>,
    /// Of streams before this one, and what became of updates.
    past: SinkCounts,
    quarantine: Quarantine,
    quarantined_until: Option<Moment>,
    state: StreamState,
    last_event_at: Option<Moment>,
    wait: Duration,
}

impl Poller {
    fn new(spec: PollSpec, index: Arc<KvIndex>, clock: Clock, outlet: StatusSender) -> Self {
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
            status: outlet,
            ranks: BTreeMap::new(),
            past: SinkCounts::default(),
            quarantine: Quarantine::default(),
            quarantined_until: None,
            state: StreamState::Connecting,
            last_event_at: None,
        }
    }

    async fn run(mut self, mut orders: SourceControl) {
        loop {
            tokio::select! {
                () = self.ask() => {}
                _ = &mut orders.stop => return,
            }
            self.publish();
            let held = self
                .quarantined_until
                .map_or(Duration::ZERO, |until| until.since(self.clock.now()));
            tokio::select! {
                () = sleep(self.wait.max(held)) => {}
                _ = &mut orders.stop => return,
            }
            self.quarantined_until = None;
        }
    }

    async fn ask(&mut self) {
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
                    // The engine has forgotten what was in it.
                    self.past.counts.dropped += 1;
                    self.forget();
                }
                self.refused(error.to_string());
            }
        }
    }

    fn refused(&mut self, reason: String) {
        self.state = StreamState::Connecting;
        self.past.last_error = Some(reason);
        self.wait_longer();
    }

    fn take(&mut self, list: &[u8]) {
        let before = self.stream.counts();
        let actions = match self.stream.take(list) {
            Ok(actions) => actions,
            Err(error) => {
                self.past.unreadable(error.to_string());
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
                    // A removal is told for every tier there may be, the device among them.
                    IndexUpdate::Removed(removed) => {
                        self.past.removed += u64::from(removed.tier == Tier::Device)
                    }
                    IndexUpdate::Cleared => self.past.cleared += 1,
                }
                let done = self.index.apply(target, &update);
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
            // It is not known whose it was.
            TrtAction::Hole { rank: None } => self
                .ranks
                .values()
                .for_each(|target| self.index.mark_loss(*target)),
        }
    }

    /// Whose cache this rank's is. An engine without ranks has one.
    fn target(&mut self, rank: Option<u32>) -> Option<Target> {
        let rank = rank.unwrap_or(0);
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

    /// Counts errors against the engine. With too many of them nothing it said is believed any longer.
    fn judge(&mut self, errors: u64) {
        let Some(until) = self.quarantine.record(self.clock.now(), errors) else {
            return;
        };
        tracing::warn!(worker = %self.spec.worker, url = %self.spec.url, error = self.past.last_error,
            "event list quarantined: too many undecodable events");
        self.quarantined_until = Some(until);
        self.forget();
        self.past = self.tally();
        self.stream = TrtStream::new(self.spec.block_size);
    }

    fn wait_longer(&mut self) {
        self.wait = (self.wait * 2).clamp(
            self.spec.interval,
            self.spec.idle_interval.max(self.spec.interval),
        );
    }

    /// Everything counted so far.
    fn tally(&self) -> SinkCounts {
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

    fn publish(&self) {
        let mut tally = self.tally();
        // An orphan was handed over, and is no applied event for that.
        tally.counts.applied = tally.counts.applied.saturating_sub(tally.counts.orphans);
        self.status.publish(StreamStatus {
            state: if self.quarantined_until.is_some() {
                StreamState::Quarantined
            } else {
                self.state
            },
            epoch: tally.counts.restarts.saturating_add(1),
            last_event_at: self.last_event_at,
            block_size: Some(self.spec.block_size.tokens()),
            last_error: tally.last_error.clone(),
            totals: tally.into(),
            ..StreamStatus::default()
        });
    }
}
