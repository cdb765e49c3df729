//! The supervisor of one worker: checks it, follows its streams, reports the verdict.
//!
//! It runs until it is stopped, and owns the worker's streams: they are stopped and awaited with
//! it. A check may take as long as its time-outs; the streams are served meanwhile.

use std::{sync::Arc, time::Duration};

use config::EngineKind;
use futures_util::future::BoxFuture;
use kv_blocks::{BlockSize, Moment};
use supervision::Task;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use crate::{
    OnVerdict, RankView, WorkerState,
    artefacts::ArtefactStore,
    health::{CheckOutcome, NextCheck},
    probe::{self, EngineFacts, ProbeError, Scrape},
    streams::WorkerStreams,
    worker_check::{
        CheckFinding, CheckPace, HealthyReport, PreviousCheck, SupervisorConfig, WorkerChecker,
        WorkerIdentity,
    },
    worker_table::{PublisherConnections, WorkerTable},
};

/// Grace time after a stall of this process, in which time-outs are not counted against a worker:
/// its answer may have come meanwhile, and its request may have gone out late.
pub(crate) const AFTER_STALL: Duration = Duration::from_secs(2);
/// Minimum interval between checks that failed requests cause.
const LEAST_BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// A worker that stays healthy for this long without its stream has only lost the stream.
const LONGEST_UNREST: Duration = Duration::from_secs(5);
/// Minimum interval between reads of stream states: the index changes far more often than the
/// state.
const LEAST_BETWEEN_STREAM_LOOKS: Duration = Duration::from_millis(20);
/// Time that a ready worker's verdict waits for its streams to connect.
const STREAMS_COME_UP: Duration = Duration::from_secs(1);
/// Pause before unanswered requests to a ready worker are repeated.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Consecutive failed reads of the load before the last figures are discarded.
const STALE_SCRAPES: u32 = 2;
/// Timer value for "never".
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The supervisor of one worker.
pub(crate) struct Supervisor {
    worker_table: Arc<WorkerTable>,
    on_verdict: OnVerdict,
    config: Arc<SupervisorConfig>,
    /// Receives configuration updates.
    config_updates: watch::Receiver<Arc<SupervisorConfig>>,
    checker: WorkerChecker,
    wake: Arc<Notify>,
    streams: WorkerStreams,
    /// Whether the worker's facts are still valid: no outage since.
    known: bool,
    facts: EngineFacts,
    /// When unanswered requests are repeated.
    ask_again_at: Option<Moment>,
    /// Whether a failed request demands a check before the next one is due.
    recheck_requested: bool,
    /// Whether a lost stream demands a check at once.
    stream_lost: bool,
    /// Interval of checks while a lost stream is unexplained. An earlier check may have met the
    /// worker while it was ending, when its port still took connections; or it shuts down
    /// gracefully, its publisher first.
    recheck_interval: Option<Duration>,
    look: Option<PendingCheck<CheckFinding>>,
    /// The running request for a ready worker's load and missing facts: slow answers to these delay
    /// no check.
    side_request: Option<PendingCheck<SideRequest>>,
    last_look: Moment,
    last_scrape: Moment,
    /// Consecutive failed reads of the load.
    scrapes_failed: u32,
    last_stream_look: Moment,
    last_check: LastCheck,
    /// The last reported state, and when the present one began.
    reported_state: Option<WorkerState>,
    ready_since: Moment,
}

/// Whether the last check could be made; if not, the reason lies with this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastCheck {
    Made,
    NotMade,
}

/// A running check.
struct PendingCheck<T> {
    /// The worker's state when the check began.
    from: WorkerState,
    found: BoxFuture<'static, T>,
}

/// Requests beside the checks.
enum SideRequest {
    Load(Option<Scrape>),
    Identity(Result<Box<WorkerIdentity>, ProbeError>),
}

impl Supervisor {
    pub(crate) fn new(
        board: Arc<WorkerTable>,
        artefacts: Arc<ArtefactStore>,
        on_verdict: OnVerdict,
        mut given: watch::Receiver<Arc<SupervisorConfig>>,
    ) -> Self {
        let orders = Arc::clone(&given.borrow_and_update());
        let wake = board.wake_of(orders.id);
        let start = Moment::START;
        let looker = WorkerChecker {
            worker_table: Arc::clone(&board),
            artefacts,
            config: Arc::clone(&orders),
        };
        Self {
            worker_table: board,
            on_verdict,
            config: orders,
            config_updates: given,
            checker: looker,
            wake,
            streams: WorkerStreams::default(),
            known: false,
            facts: EngineFacts::default(),
            ask_again_at: None,
            recheck_requested: false,
            stream_lost: false,
            recheck_interval: None,
            look: None,
            side_request: None,
            last_look: start,
            last_scrape: start,
            scrapes_failed: 0,
            last_stream_look: start,
            last_check: LastCheck::Made,
            reported_state: None,
            ready_since: start,
        }
    }

    /// Runs until `stop` is set or its sender is dropped.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            () = self.keep_supervised() => {}
        }
        (self.look, self.side_request) = (None, None);
        self.streams.stop(&self.worker_table, self.config.id).await;
    }

    /// Runs the supervision and restarts it after a panic. The worker keeps its state in the table
    /// meanwhile, and requests use that.
    async fn keep_supervised(&mut self) {
        let mut task = Task::new("worker");
        while task.attempt(self.keep()).await.is_none() {
            self.recover();
        }
    }

    /// Repairs the state after a panic: running checks are not polled again, an interrupted
    /// configuration update is applied again and the worker identified anew, and wanted streams
    /// that do not run are started. Running streams are tasks of their own and go on.
    fn recover(&mut self) {
        (self.look, self.side_request) = (None, None);
        self.known = false;
        self.config_updates.mark_changed();
        self.streams.start_missing_at(self.worker_table.clock.now());
    }

    async fn keep(&mut self) {
        loop {
            let now = self.worker_table.clock.now();
            if self.streams.retry_at().is_some_and(|at| at <= now) {
                self.streams.start_missing(
                    &self.worker_table,
                    &self.config.streams,
                    (self.config.id, &self.config.name),
                );
            }
            let due = [
                self.tell(now),
                self.begin_check(now),
                self.begin_side_request(now),
                self.streams.retry_at(),
            ];
            let until = due.into_iter().flatten().min().unwrap_or(now + NEVER);
            let streams_from = self.last_stream_look + LEAST_BETWEEN_STREAM_LOOKS;
            tokio::select! {
                () = tokio::time::sleep(until.since(now)) => {}
                () = self.wake.notified() => {}
                Ok(()) = self.config_updates.changed() => self.take_config().await,
                (from, found) = ended(&mut self.look) => {
                    self.last_look = self.worker_table.clock.now();
                    self.looked(from, found).await;
                    self.worker_table.mark_checked(self.config.id);
                }
                (_, found) = ended(&mut self.side_request) => self.asked(found).await,
                () = async {
                    tokio::time::sleep(streams_from.since(now)).await;
                    self.streams.changed().await;
                } => self.check_streams(),
            }
        }
    }

    /// Begins the check that is due; otherwise returns when one is.
    fn begin_check(&mut self, now: Moment) -> Option<Moment> {
        let (next, concerned) = self.worker_table.next(self.config.id);
        self.recheck_requested |= concerned;
        if self.look.is_some() {
            return None;
        }
        let mut at = self.last_look + self.pause(next);
        if self.recheck_requested {
            at = at.min(self.last_look + LEAST_BETWEEN_LOOKS);
        }
        if let Some(pause) = self.recheck_interval {
            at = at.min(self.last_look + pause);
        }
        if std::mem::take(&mut self.stream_lost) {
            at = now;
            self.recheck_interval = Some(LEAST_BETWEEN_LOOKS);
            self.distrust();
        }
        if at > now {
            return Some(at);
        }
        self.recheck_requested = false;
        let from = self.state();
        let before = PreviousCheck {
            known: self.known,
            ready: from == WorkerState::Ready,
            streams_missing: self.config.streams.wanted() && !self.streams.any(),
            facts: self.facts.clone(),
        };
        let looker = self.checker.clone();
        let found: BoxFuture<'static, CheckFinding> = match next {
            NextCheck::CheckIn(_) => Box::pin(looker.check(before)),
            NextCheck::KnockIn(_) => Box::pin(looker.probe_tcp(before)),
        };
        self.look = Some(PendingCheck { from, found });
        None
    }

    /// Begins to read the load or the missing facts, if due; otherwise returns when it is.
    fn begin_side_request(&mut self, now: Moment) -> Option<Moment> {
        let from = self.state();
        if self.side_request.is_some() || from != WorkerState::Ready || !self.known {
            return None;
        }
        let scrape_at = self.scrape_at();
        let found: BoxFuture<'static, SideRequest> =
            if self.ask_again_at.is_some_and(|at| at <= now) {
                self.ask_again_at = None;
                let (looker, said) = (self.checker.clone(), self.facts.clone());
                Box::pin(async move {
                    SideRequest::Identity(
                        looker
                            .identify_worker(&said, CheckPace::Thorough)
                            .await
                            .map(Box::new),
                    )
                })
            } else if scrape_at <= now {
                self.last_scrape = now;
                let asker = self.config.client.clone();
                Box::pin(async move { SideRequest::Load(probe::scrape(&asker).await) })
            } else {
                return Some(self.ask_again_at.map_or(scrape_at, |at| at.min(scrape_at)));
            };
        self.side_request = Some(PendingCheck { from, found });
        None
    }

    /// Marks the worker's facts as possibly outdated.
    fn distrust(&mut self) {
        self.known = false;
        self.side_request = None;
    }

    /// Applies the finding of a check.
    async fn looked(&mut self, from: WorkerState, found: CheckFinding) {
        let id = self.config.id;
        let mut result = match found {
            CheckFinding::ConnectFailed { refused } => {
                return self.worker_table.record_failed_connect(id, refused);
            }
            CheckFinding::Checked(result) => result,
        };
        match result {
            Ok(HealthyReport::Identified(ref mut found)) => self.identified(found).await,
            Ok(HealthyReport::Loras(ref mut loras)) => {
                let loras = std::mem::take(loras);
                self.worker_table
                    .change(id, |entry| Arc::make_mut(&mut entry.view).loras = loras);
            }
            Ok(HealthyReport::Nothing) | Err(_) => {}
        }
        self.note_whether_made(result.as_ref().err());
        let before = self.state();
        let failed = result
            .as_ref()
            .is_err_and(|trouble| trouble.check == CheckOutcome::Failed);
        if failed
            && before == WorkerState::Ready
            && self.worker_table.clock.resumed_within(AFTER_STALL)
        {
            // The check timed out while this process stood still: it is repeated before the worker
            // is blamed.
            self.recheck_requested = true;
            return;
        }
        self.worker_table
            .record_check(id, result.as_ref().map(drop));
        let after = self.state();
        match &result {
            Err(trouble)
                if trouble.check == CheckOutcome::Refused || after != WorkerState::Ready =>
            {
                self.distrust()
            }
            // The worker failed a request during the check: the next process that answers may be
            // another one.
            Ok(_) if from == WorkerState::Ready && after == WorkerState::Down => self.distrust(),
            _ => {}
        }
        if before != WorkerState::Ready && after == WorkerState::Ready {
            self.ready_since = self.worker_table.clock.now();
        }
        let pause = self
            .recheck_interval
            .filter(|_| after == WorkerState::Ready && self.stream_is_away());
        // A worker that answers well is checked less and less often, until its usual interval is as
        // good.
        let pause = pause.map(|pause| if result.is_ok() { pause * 2 } else { pause });
        self.recheck_interval = pause.filter(|pause| *pause < LONGEST_UNREST);
        // A port that answers while the checks fail is not probed in a tight loop.
        if from == WorkerState::Down && after == WorkerState::Down && result.is_err() {
            self.worker_table.record_failed_connect(id, false);
        }
    }

    /// Logs once that checks cannot be made.
    fn note_whether_made(&mut self, trouble: Option<&ProbeError>) {
        let not_made = trouble.filter(|trouble| trouble.check == CheckOutcome::NotMade);
        if let (Some(trouble), LastCheck::Made) = (not_made, self.last_check) {
            warn!(worker = %self.config.name, reason = %trouble.text, "a health check could not be made: no verdict on the worker");
        }
        self.last_check = if not_made.is_some() {
            LastCheck::NotMade
        } else {
            LastCheck::Made
        };
    }

    /// Applies the result of a side request.
    async fn asked(&mut self, found: SideRequest) {
        match found {
            SideRequest::Load(Some(scrape)) => {
                self.scrapes_failed = 0;
                self.worker_table.record_scrape(
                    self.config.id,
                    self.worker_table.clock.now(),
                    &scrape,
                );
            }
            SideRequest::Load(None) => {
                self.scrapes_failed = self.scrapes_failed.saturating_add(1);
                if self.scrapes_failed >= STALE_SCRAPES {
                    self.worker_table.clear_load(self.config.id);
                }
            }
            SideRequest::Identity(Ok(mut found)) => {
                self.identified(&mut found).await;
                // Facts that stay unanswered are requested again after a pause.
                self.ask_again_at = self
                    .ask_again_at
                    .map(|_| self.worker_table.clock.now() + ASK_AGAIN);
            }
            // Only the checks decide its health.
            SideRequest::Identity(Err(_)) => {
                self.ask_again_at = Some(self.worker_table.clock.now() + ASK_AGAIN)
            }
        }
    }

    fn pause(&self, next: NextCheck) -> Duration {
        match next {
            NextCheck::CheckIn(_)
                if !self.config.checks_enabled && self.state() == WorkerState::Ready =>
            {
                NEVER
            }
            NextCheck::CheckIn(pause) | NextCheck::KnockIn(pause) => pause,
        }
    }

    fn state(&self) -> WorkerState {
        self.worker_table
            .with(self.config.id, |entry| entry.view.state)
            .unwrap_or_default()
    }

    /// Reports the verdict when the state differs from the last reported one. While a ready
    /// worker's streams still connect, returns when to try again.
    fn tell(&mut self, now: Moment) -> Option<Moment> {
        let state = self.state();
        if state == WorkerState::Unknown || self.reported_state == Some(state) {
            return None;
        }
        if state == WorkerState::Ready {
            let latest = self.ready_since + STREAMS_COME_UP;
            let coming_up =
                |rank: &RankView| matches!(rank.stream, Some("connecting" | "replaying"));
            let waiting = self.worker_table.with(self.config.id, |entry| {
                entry.view.ranks.iter().any(coming_up)
            });
            if waiting == Some(true) && now < latest {
                return Some(latest);
            }
        }
        if let Some(verdict) = self.worker_table.verdict(self.config.id) {
            (self.on_verdict)(&verdict);
        }
        if self.reported_state.replace(state).is_none() {
            self.worker_table
                .judged
                .send_if_modified(|judged| judged.insert(self.config.id));
        }
        None
    }

    /// Applies a changed configuration of this worker: it is identified anew, and used meanwhile as
    /// before.
    async fn take_config(&mut self) {
        let orders = Arc::clone(&self.config_updates.borrow_and_update());
        (self.look, self.side_request) = (None, None);
        if orders.streams.differ_from(&self.config.streams) {
            // The content of one stream is invalid for the next one.
            let id = self.config.id;
            let followed = self
                .worker_table
                .with(id, |entry| entry.followed_targets(|_| true))
                .unwrap_or_default();
            self.streams.stop(&self.worker_table, id).await;
            self.worker_table.forget_cache(followed);
            self.worker_table
                .change(id, |entry| entry.events_wanted = orders.streams.wanted());
        }
        self.checker.config = Arc::clone(&orders);
        self.config = orders;
        self.known = false;
        self.recheck_requested = true;
    }

    /// Applies the worker's identity: view, tokenizers, streams.
    async fn identified(&mut self, found: &mut WorkerIdentity) {
        let orders = Arc::clone(&self.config);
        let (id, name, base) = (orders.id, &orders.name, &found.base);
        let before = self.worker_table.with(id, |entry| {
            (entry.view.namespace_model.clone(), entry.view.dp_ranks())
        });
        let (old_base, old_ranks) = before.unwrap_or_default();
        let changed = old_base.as_ref().is_some_and(|old| old != base);
        if changed || (old_base.is_some() && found.ranks != old_ranks) {
            if changed {
                warn!(worker = %name, was = old_base.as_deref(), is = %base, "serves another model now: its cache is forgotten");
            }
            self.streams.stop(&self.worker_table, id).await;
            // This also forgets which model it serves: the model that it registers next is another
            // one, or has other ranks.
            self.worker_table.forget_model(id);
        }
        self.worker_table.change(id, |entry| {
            entry.artefacts = std::mem::take(&mut found.artefacts);
            let view = Arc::make_mut(&mut entry.view);
            let announced = entry
                .streams
                .iter()
                .find_map(|stream| stream.source.announced_block_size());
            let announced = announced.and_then(|tokens| BlockSize::new(u64::from(tokens)).ok());
            let metrics = found.facts.metrics();
            let size = orders
                .block_size
                .or(announced)
                .or(metrics.and_then(|metrics| metrics.block_size));
            view.block_size_known = size.is_some();
            if let Some(size) = size {
                view.block_size = size;
            }
            view.engine = found.engine;
            view.version = found.facts.version().cloned();
            view.messages = found.facts.messages();
            view.models = std::mem::take(&mut found.list.models);
            view.loras = std::mem::take(&mut found.list.loras);
            view.namespace_model = Some(Arc::clone(base));
            view.ranks = vec![RankView::default(); found.ranks as usize];
            view.num_blocks = metrics.and_then(|metrics| metrics.num_blocks);
            for target in entry.view.targets() {
                self.worker_table.index.register(target, Arc::clone(base));
                if entry.distrusted.contains(&target.rank) {
                    self.worker_table.index.trust(target, false);
                }
            }
        });
        if let Some(other) = self.worker_table.has_conflicting_tokenizer(id, base) {
            warn!(worker = %name, %other, model = %base, "two workers serve one model with different tokenizers, or one of them without: none is used");
        }
        let now = self.worker_table.clock.now();
        if let Some((at, scrape)) = found.scrape.take() {
            self.scrapes_failed = 0;
            self.worker_table.record_scrape(id, at, &scrape);
            self.last_scrape = now;
        }
        // At once when the worker is in use: the short time limit only served a quick return.
        self.ask_again_at = (!found.complete).then_some(now);
        self.known = true;
        self.facts = found.facts.clone();
        self.streams
            .run(
                &self.worker_table,
                &orders.streams,
                (id, name),
                base,
                std::mem::take(&mut found.streams),
            )
            .await;
    }

    fn stream_is_away(&self) -> bool {
        let away = |rank: &RankView| rank.stream == Some("connecting");
        self.worker_table
            .with(self.config.id, |entry| entry.view.ranks.iter().any(away))
            == Some(true)
    }

    /// Handles a change of a stream's state or its part of the index. A lost connection is a death
    /// or a restart: the worker is checked at once.
    fn check_streams(&mut self) {
        self.last_stream_look = self.worker_table.clock.now();
        self.streams
            .forget_ended(&self.worker_table, (self.config.id, &self.config.name));
        let lost = self.worker_table.streams_changed(self.config.id) == PublisherConnections::Lost;
        self.learn_block_size();
        if lost && self.state() == WorkerState::Ready {
            info!(worker = %self.config.name, "event stream lost its connection: looking at the worker");
            self.stream_lost = true;
        }
    }

    /// Learns the block size from the worker's own events, which beats its metrics: it is the size
    /// of the blocks in the index.
    fn learn_block_size(&self) {
        if self.config.block_size.is_some() {
            return;
        }
        let id = self.config.id;
        let told = self.worker_table.with(id, |entry| {
            let told = entry
                .streams
                .iter()
                .find_map(|stream| stream.source.announced_block_size())?;
            let told = BlockSize::new(u64::from(told)).ok()?;
            (!entry.view.block_size_known || entry.view.block_size != told).then_some(told)
        });
        if let Some(size) = told.flatten() {
            info!(worker = %self.config.name, block_size = size.tokens(), "block size learned from its events");
            self.worker_table.change(id, |entry| {
                let view = Arc::make_mut(&mut entry.view);
                view.block_size = size;
                view.block_size_known = true;
            });
        }
    }

    /// Returns when the engine's load is due to be read again.
    fn scrape_at(&self) -> Moment {
        let has_metrics = self.worker_table.with(self.config.id, |entry| {
            let told = entry.view.load != crate::EngineLoad::default() || self.scrapes_failed > 0;
            let tells = entry.view.engine == EngineKind::Vllm || told;
            entry.view.state == WorkerState::Ready && tells
        });
        let pause = if has_metrics == Some(true) {
            self.config.scrape_every
        } else {
            NEVER
        };
        self.last_scrape + pause
    }
}

/// Waits for the running check; for ever if there is none. May be dropped and called again.
async fn ended<T>(running: &mut Option<PendingCheck<T>>) -> (WorkerState, T) {
    let Some(PendingCheck { from, found }) = running else {
        return std::future::pending().await;
    };
    let ended = (*from, found.await);
    *running = None;
    ended
}
