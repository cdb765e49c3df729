//! The supervisor of one worker: drives its state machine.
//!
//! It carries out the actions of the [`WorkerMachine`](crate::worker_machine::WorkerMachine),
//! feeds the results back, and decides nothing itself. It runs until it is stopped, and owns the
//! worker's streams: they are stopped and awaited with it. A check may take as long as its
//! time-outs; the streams are served meanwhile.

mod findings;
mod identity;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use kv_blocks::{Moment, WorkerId};
use supervision::Task;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use self::findings::SideFinding;
use crate::{
    OnVerdict, SaltSupport,
    artefacts::ArtefactStore,
    probe::EngineFacts,
    streams::WorkerStreams,
    supervisor_config::SupervisorConfig,
    worker_check::{CheckFinding, WorkerChecker},
    worker_identity::KnownFacts,
    worker_machine::{CheckReason, CheckScope, SideRequest, SupervisorAction, WorkerEvent},
    worker_table::WorkerTable,
};

/// Grace time after a stall of this process, in which time-outs are not counted against a worker:
/// its answer may have come meanwhile, and its request may have gone out late.
pub(crate) const AFTER_STALL: Duration = Duration::from_secs(2);
/// Minimum interval between reads of stream states: the index changes far more often than the
/// state.
const LEAST_BETWEEN_STREAM_READS: Duration = Duration::from_millis(20);

/// The supervisor of one worker.
pub(crate) struct Supervisor {
    worker_table: Arc<WorkerTable>,
    on_verdict: OnVerdict,
    /// Receives configuration updates.
    config_updates: watch::Receiver<Arc<SupervisorConfig>>,
    checker: WorkerChecker,
    wake: Arc<Notify>,
    streams: WorkerStreams,
    /// The engine's answers so far.
    facts: EngineFacts,
    check: Option<BoxFuture<'static, CheckFinding>>,
    side_request: Option<BoxFuture<'static, SideFinding>>,
    streams_read_at: Moment,
    /// Whether a block size of its events that is not the configured one has been reported.
    other_block_size_reported: bool,
    /// Whether a figure that cannot be used was logged.
    reported_invalid: bool,
    /// The last reason for which it gets no requests of tenants that was logged.
    reported_salts: Option<SaltSupport>,
}

impl Supervisor {
    pub(crate) fn new(
        worker_table: Arc<WorkerTable>,
        artefacts: Arc<ArtefactStore>,
        on_verdict: OnVerdict,
        mut config_updates: watch::Receiver<Arc<SupervisorConfig>>,
    ) -> Self {
        let config = Arc::clone(&config_updates.borrow_and_update());
        let (id, name) = (config.id, Arc::clone(&config.name));
        Self {
            on_verdict,
            config_updates,
            checker: WorkerChecker {
                artefacts,
                config,
                clock: worker_table.clock,
            },
            wake: worker_table.wake_of(id),
            streams: WorkerStreams::new(Arc::clone(&worker_table), id, name),
            worker_table,
            facts: EngineFacts::default(),
            check: None,
            side_request: None,
            streams_read_at: Moment::START,
            other_block_size_reported: false,
            reported_invalid: false,
            reported_salts: None,
        }
    }

    fn id(&self) -> WorkerId {
        self.checker.config.id
    }

    /// Runs until `stop` is set or its sender is dropped.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            () = self.keep_supervised() => {}
        }
        self.feed(WorkerEvent::Stop).await;
    }

    /// Runs the supervision and restarts it after a panic. The worker keeps its state in the table
    /// meanwhile, and requests use that. An interrupted configuration update is applied again, and
    /// running streams are tasks of their own and go on.
    async fn keep_supervised(&mut self) {
        let mut task = Task::new("worker");
        while task.attempt(self.keep()).await.is_none() {
            self.config_updates.mark_changed();
            self.feed(WorkerEvent::Restarted).await;
        }
    }

    async fn keep(&mut self) {
        loop {
            self.feed(WorkerEvent::Tick).await;
            let now = self.worker_table.clock.now();
            let next_wake = self.worker_table.next_wake(self.id());
            let next_read = self.streams_read_at + LEAST_BETWEEN_STREAM_READS;
            tokio::select! {
                () = sleep_until(next_wake, now) => {}
                () = self.wake.notified() => {}
                Ok(()) = self.config_updates.changed() => self.take_config().await,
                found = ended(&mut self.check) => self.check_ended(found).await,
                found = ended(&mut self.side_request) => self.side_request_ended(found).await,
                () = async {
                    tokio::time::sleep(next_read.since(now)).await;
                    self.streams.changed().await;
                } => self.streams_changed().await,
            }
        }
    }

    /// Feeds an event to the state machine, carries out the actions and feeds their results.
    async fn feed(&mut self, event: WorkerEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.worker_table.on(self.id(), event) {
                events.extend(self.perform(action).await);
            }
        }
    }

    /// Carries out one action. Returns the event of its result, if it has one at once.
    async fn perform(&mut self, action: SupervisorAction) -> Option<WorkerEvent> {
        match action {
            SupervisorAction::StartCheck { scope, reason } => self.start_check(scope, reason),
            SupervisorAction::CancelCheck => self.check = None,
            SupervisorAction::StartSideRequest(request) => self.start_side_request(request),
            SupervisorAction::CancelSideRequest => self.side_request = None,
            SupervisorAction::StartStreams => {
                let coverage = self.streams.start_missing(&self.checker.config.streams);
                return Some(WorkerEvent::StreamsStarted(coverage));
            }
            SupervisorAction::StopStreams => self.streams.stop().await,
            SupervisorAction::ReportVerdict => self.report_verdict(),
            SupervisorAction::WarnCheckNotMade(reason) => {
                warn!(worker = %self.checker.config.name, %reason, "a health check could not be made: no verdict on the worker");
            }
        }
        None
    }

    fn start_check(&mut self, scope: CheckScope, reason: CheckReason) {
        if reason == CheckReason::StreamLost {
            info!(worker = %self.checker.config.name, "event stream lost its connection: looking at the worker");
        }
        let check = self.checker.clone().check(scope, self.known_facts());
        self.check = Some(Box::pin(check));
    }

    fn start_side_request(&mut self, request: SideRequest) {
        let (checker, known) = (self.checker.clone(), self.known_facts());
        self.side_request = Some(Box::pin(findings::side_request(checker, request, known)));
    }

    /// Returns the facts known now.
    fn known_facts(&self) -> KnownFacts {
        let record = self.worker_table.with(self.id(), |entry| {
            (Arc::clone(&entry.view), entry.artefacts.clone())
        });
        let (view, artefacts) = record.unzip();
        KnownFacts {
            engine: self.facts.clone(),
            view,
            artefacts: artefacts.unwrap_or_default(),
            streams_missing: self.checker.config.streams.enabled() && !self.streams.any(),
        }
    }

    fn report_verdict(&self) {
        let id = self.id();
        if let Some(verdict) = self.worker_table.verdict(id) {
            (self.on_verdict)(&verdict);
        }
        self.worker_table
            .reported
            .send_if_modified(|reported| reported.insert(id));
    }

    /// Applies a changed configuration of this worker.
    async fn take_config(&mut self) {
        let config = Arc::clone(&self.config_updates.borrow_and_update());
        self.feed(WorkerEvent::Configured(config.periodic_checks))
            .await;
        let old = &self.checker.config.streams;
        if config.streams.differ_from(old) {
            self.streams.stop_and_forget().await;
            self.other_block_size_reported = false;
            let enabled = config.streams.enabled();
            self.worker_table
                .change(config.id, |entry| entry.events_enabled = enabled);
        }
        self.checker.config = config;
    }

    /// Handles a change of a stream's state or its part of the index.
    async fn streams_changed(&mut self) {
        self.streams_read_at = self.worker_table.clock.now();
        if self.streams.forget_ended() {
            self.feed(WorkerEvent::StreamEnded).await;
        }
        self.worker_table.read_streams(self.id());
        self.learn_block_size();
    }

    /// Takes the block size from the worker's own events, where none is configured. A configured one
    /// that differs is reported.
    fn learn_block_size(&mut self) {
        let config = &self.checker.config;
        if let Some(configured) = config.block_size {
            let announced = self
                .worker_table
                .with(config.id, |entry| entry.announced_block_size())
                .flatten();
            if let Some(found) = announced.filter(|found| *found != configured)
                && !std::mem::replace(&mut self.other_block_size_reported, true)
            {
                warn!(worker = %config.name, configured = configured.tokens(), found = found.tokens(),
                    "its events have blocks of another size than configured and are not credited: set workers[].block_size to what the engine uses");
            }
            return;
        }
        if let Some(size) = self.worker_table.learn_block_size(config.id) {
            info!(worker = %config.name, block_size = size.tokens(), "block size learned from its events");
        }
    }
}

/// Sleeps until this moment; for ever if there is none.
async fn sleep_until(at: Option<Moment>, now: Moment) {
    match at {
        Some(at) => tokio::time::sleep(at.since(now)).await,
        None => std::future::pending().await,
    }
}

/// Waits for a running request; for ever if there is none. May be dropped and called again.
async fn ended<T>(running: &mut Option<BoxFuture<'static, T>>) -> T {
    let Some(request) = running else {
        return std::future::pending().await;
    };
    let ended = request.await;
    *running = None;
    ended
}
