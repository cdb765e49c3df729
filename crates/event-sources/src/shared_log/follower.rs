//! The task behind a stream over both ways.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use event_log::{LogBatch, LogDelivery, LogMember, LogMessage, StreamRole};
use futures_util::FutureExt;
use kv_blocks::{Moment, StreamPosition};
use kv_events::{AcceptedRecord, Continuation, ContinuationOutcome, Input};
use net::Clock;
use tokio::{
    sync::{oneshot, watch},
    time::{Interval, MissedTickBehavior, interval, sleep, timeout},
};
use zmtp::{Sub, SubEvent};

use super::{recent::RecentPositions, repair::RepairTimer};
use crate::{
    BlockSink, SourceSpec,
    follower::{GO, REBIND, TICK},
    handle::{SourceControl, StatusSender},
    replay::ReplayEvent,
    replaying_driver::ReplayingDriver,
    stream_driver::StreamDriver,
};

/// Longest wait for the log at the start, and for its past.
const LOG_PATIENCE: Duration = Duration::from_secs(2);
const PAST_PATIENCE: Duration = Duration::from_secs(60);
/// Time without a connection to the engine after which an owner hands the stream over.
const ENGINE_PATIENCE: Duration = Duration::from_secs(3);
/// Silence after which an owner tells which batch is the last one.
const QUIET: Duration = Duration::from_secs(1);

/// Follows one stream until stopped.
pub(crate) struct SharedLogFollower {
    spec: SourceSpec,
    sink: Arc<dyn BlockSink>,
    clock: Clock,
    stream: ReplayingDriver,
    member: LogMember,
    roles: watch::Receiver<StreamRole>,
    recent: RecentPositions,
    repairs: RepairTimer,
    /// The connection to the engine's live socket.
    peer: Option<u64>,
    owner: OwnerState,
    numbering: Numbering,
}

/// What an owner has published.
#[derive(Debug, Default)]
struct OwnerState {
    last_batch_at: Option<Moment>,
    /// The last batch that the log was told of as the last.
    told: Option<StreamPosition>,
    /// Since when it has had no connection to the engine.
    disconnected_since: Option<Moment>,
}

/// Whether a stream can be shared: without numbers, no batch proves what it continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbering {
    Numbered,
    Unnumbered,
}

/// Reasons why the loop beside the engine wakes up.
enum EngineWake {
    Live(SubEvent),
    Replay(Option<ReplayEvent>),
    Role,
    Tick,
    Resync,
    Stop,
}

/// Reasons why the loop beside the log wakes up.
enum LogWake {
    Log(LogDelivery),
    Replay(Option<ReplayEvent>),
    Role,
    Tick,
    Resync,
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowEnd {
    Stopped,
    Quarantined,
    RoleChanged,
}

impl SharedLogFollower {
    pub(crate) fn new(
        spec: SourceSpec,
        member: LogMember,
        sink: Arc<dyn BlockSink>,
        clock: Clock,
    ) -> Self {
        let driver = StreamDriver::new(spec.driver_spec(), Arc::clone(&sink), clock);
        let stream =
            ReplayingDriver::new(driver, Arc::clone(&spec.worker), spec.replay_requester());
        Self {
            spec,
            sink,
            clock,
            stream,
            roles: member.roles(),
            member,
            recent: RecentPositions::default(),
            repairs: RepairTimer::default(),
            peer: None,
            owner: OwnerState::default(),
            numbering: Numbering::Numbered,
        }
    }

    /// Returns the present role.
    fn role(&mut self) -> StreamRole {
        let role = *self.roles.borrow_and_update();
        match self.numbering {
            Numbering::Numbered => role,
            Numbering::Unnumbered => StreamRole::Alone,
        }
    }

    pub(crate) async fn run(mut self, status: StatusSender, mut control: SourceControl) {
        self.sink.register(self.spec.target, &self.spec.model);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::select! {
            () = self.read_past() => {}
            _ = &mut control.stop => return,
        }
        loop {
            let role = self.role();
            self.stream.driver.set_accepted_record(record_in(role));
            let ended = if role == StreamRole::Follower {
                self.follow_log(&status, &mut ticks, &mut control).await
            } else {
                self.follow_engine(&status, &mut ticks, &mut control).await
            };
            self.peer = None;
            match ended {
                FollowEnd::Stopped => return,
                FollowEnd::RoleChanged => {}
                FollowEnd::Quarantined => {
                    let until = self.stream.driver.quarantined_until().unwrap_or_default();
                    tokio::select! {
                        () = sleep(until.since(self.clock.now())) => {}
                        _ = &mut control.stop => return,
                    }
                    self.stream.driver.end_quarantine();
                    self.publish(&status);
                }
            }
        }
    }

    /// Applies what the log has of the stream's past, as far as it continues what is known.
    async fn read_past(&mut self) {
        let mut in_use = self.member.in_use();
        let is_used = timeout(LOG_PATIENCE, in_use.wait_for(|in_use| *in_use))
            .await
            .is_ok();
        if is_used && let Ok(mut history) = self.member.history().await {
            let read = async {
                while let Ok(Some(message)) = history.next().await {
                    if let LogMessage::Batch(batch) = message {
                        self.offer(&batch);
                    }
                    tokio::task::coop::consume_budget().await;
                }
            };
            let _ = timeout(PAST_PATIENCE, read).await;
        }
        self.member.set_past_read();
    }

    async fn follow_engine(
        &mut self,
        status: &StatusSender,
        ticks: &mut Interval,
        control: &mut SourceControl,
    ) -> FollowEnd {
        let Some(mut sub) = self.open(status, &mut control.stop).await else {
            return FollowEnd::Stopped;
        };
        // The engine says the same, and sooner.
        self.member.discard();
        self.owner = OwnerState::default();
        loop {
            let wake = tokio::select! {
                event = sub.next() => EngineWake::Live(event),
                answer = self.stream.next_answer() => EngineWake::Replay(answer),
                _ = self.roles.changed() => EngineWake::Role,
                _ = ticks.tick() => EngineWake::Tick,
                () = control.resync.notified() => EngineWake::Resync,
                _ = &mut control.stop => EngineWake::Stop,
            };
            match wake {
                EngineWake::Live(event) => self.live_burst(event, || sub.next().now_or_never()),
                EngineWake::Replay(answer) => self.stream.replay_burst(answer),
                EngineWake::Role => {
                    let role = self.role();
                    if role == StreamRole::Follower {
                        return FollowEnd::RoleChanged;
                    }
                    self.owner = OwnerState::default();
                    self.stream.driver.set_accepted_record(record_in(role));
                }
                EngineWake::Tick => {
                    self.stream.feed(Input::Tick);
                    self.check_ownership();
                }
                EngineWake::Resync => self.stream.feed(Input::Resync),
                EngineWake::Stop => return FollowEnd::Stopped,
            }
            self.record_accepted();
            self.publish(status);
            if self.stream.driver.is_quarantined() {
                return FollowEnd::Quarantined;
            }
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Opens the live socket; returns `None` when stopped.
    async fn open(
        &mut self,
        status: &StatusSender,
        stop: &mut oneshot::Receiver<()>,
    ) -> Option<Sub> {
        let topic = self.spec.topic.clone();
        loop {
            match Sub::connect(&self.spec.endpoint, &[topic.as_bytes()], self.spec.limits()) {
                Ok(sub) => return Some(sub),
                Err(error) => self.stream.driver.record_fault(error.to_string()),
            }
            self.publish(status);
            tokio::select! {
                () = sleep(REBIND) => {}
                _ = &mut *stop => return None,
            }
        }
    }

    /// Takes an event and those already buffered behind it.
    fn live_burst(&mut self, first: SubEvent, mut next: impl FnMut() -> Option<SubEvent>) {
        self.live(first);
        for _ in 1..GO {
            if self.stream.driver.is_quarantined() {
                return;
            }
            let Some(event) = next() else { return };
            self.live(event);
        }
    }

    fn live(&mut self, event: SubEvent) {
        match event {
            SubEvent::Connected { peer, .. } => {
                self.peer = Some(peer);
                self.stream.connected();
            }
            SubEvent::Message { peer, .. } if self.peer != Some(peer) => {
                self.stream.driver.record_dropped();
            }
            SubEvent::Message { frames, .. } => {
                if frames.len() == 2 && self.numbering == Numbering::Numbered {
                    self.numbering = Numbering::Unnumbered;
                    self.member.leave();
                }
                self.stream.live(&frames);
            }
            SubEvent::Disconnected { peer, reason } => {
                if self.peer == Some(peer) {
                    tracing::warn!(worker = %self.spec.worker, endpoint = %self.spec.endpoint, reason, "event stream lost");
                    self.peer = None;
                    self.stream.disconnected();
                }
                self.stream.driver.record_fault(reason);
            }
            SubEvent::Unreachable { reason, .. } => self.stream.driver.record_fault(reason),
        }
    }

    /// Remembers the batches that the sequencer accepted; an owner publishes them.
    fn record_accepted(&mut self) {
        for batch in self.stream.driver.take_accepted() {
            self.recent.add(batch.position);
            self.owner.last_batch_at = Some(self.clock.now());
            // Recorded while it was not the owner, if empty.
            if !batch.payload.is_empty() {
                self.member.publish(LogMessage::Batch(LogBatch {
                    seq: batch.position.seq,
                    previous: batch.previous,
                    payload: Bytes::from(batch.payload),
                }));
            }
        }
    }

    /// Tells the followers of a quiet stream which batch is the last, and hands the stream over if
    /// the engine cannot be reached.
    fn check_ownership(&mut self) {
        if self.member.role() != StreamRole::Owner {
            return;
        }
        let now = self.clock.now();
        if self.peer.is_some() {
            self.owner.disconnected_since = None;
        } else {
            let since = *self.owner.disconnected_since.get_or_insert(now);
            if now.since(since) >= ENGINE_PATIENCE {
                self.owner.disconnected_since = None;
                self.member.record_unable();
            }
            return;
        }
        let is_quiet = self
            .owner
            .last_batch_at
            .is_none_or(|last| now.since(last) >= QUIET);
        let last = self.stream.driver.position();
        if is_quiet
            && !self.stream.is_replaying()
            && self.owner.told != last
            && let Some(last) = last
        {
            self.owner.told = Some(last);
            self.member.publish(LogMessage::Tail(last));
        }
    }

    async fn follow_log(
        &mut self,
        status: &StatusSender,
        ticks: &mut Interval,
        control: &mut SourceControl,
    ) -> FollowEnd {
        // The log may have been read before the engine's last batches were, or the other way round.
        self.stream.recognise();
        loop {
            let waits = self.stream.is_replaying();
            let wake = tokio::select! {
                delivery = self.member.next(), if !waits => LogWake::Log(delivery),
                answer = self.stream.next_answer() => LogWake::Replay(answer),
                _ = self.roles.changed() => LogWake::Role,
                _ = ticks.tick() => LogWake::Tick,
                () = control.resync.notified() => LogWake::Resync,
                _ = &mut control.stop => LogWake::Stop,
            };
            match wake {
                LogWake::Log(delivery) => self.log_burst(delivery),
                LogWake::Replay(answer) => self.stream.replay_burst(answer),
                LogWake::Role => {
                    if self.role() != StreamRole::Follower {
                        return FollowEnd::RoleChanged;
                    }
                }
                LogWake::Tick => self.stream.feed(Input::Tick),
                LogWake::Resync => self.stream.feed(Input::Resync),
                LogWake::Stop => return FollowEnd::Stopped,
            }
            self.record_accepted();
            if !self.stream.is_replaying() && self.repairs.take(self.clock.now()) {
                self.member.record_repair();
                self.stream.recognise();
            }
            self.publish(status);
            if self.stream.driver.is_quarantined() {
                return FollowEnd::Quarantined;
            }
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Takes a delivery and those already queued behind it, until the engine must be asked.
    fn log_burst(&mut self, first: LogDelivery) {
        let mut next = Some(first);
        for _ in 0..GO {
            match next {
                None => return,
                Some(LogDelivery::Overflow) => {
                    self.stream.driver.record_dropped();
                    self.repairs.request();
                }
                Some(LogDelivery::Message(LogMessage::Tail(last))) => {
                    if !self.recent.contains(last) && self.stream.driver.position() != Some(last) {
                        self.repairs.request();
                    }
                }
                Some(LogDelivery::Message(LogMessage::Batch(batch))) => {
                    if !self.offer(&batch) {
                        self.repairs.request();
                    }
                }
            }
            if self.stream.driver.is_quarantined() {
                return;
            }
            next = self.member.try_next();
        }
    }

    /// Applies a batch of the log; returns whether it is applied, now or before.
    fn offer(&mut self, batch: &LogBatch) -> bool {
        let outcome = self.stream.driver.continue_with(Continuation {
            seq: batch.seq,
            previous: batch.previous,
            payload: &batch.payload,
        });
        self.record_accepted();
        match outcome {
            ContinuationOutcome::Applied(_) | ContinuationOutcome::Repeated => true,
            ContinuationOutcome::Unproven | ContinuationOutcome::Busy => {
                self.recent.contains(batch.position())
            }
        }
    }

    fn publish(&self, status: &StatusSender) {
        let mut fresh = self.stream.driver.status();
        if *self.roles.borrow() == StreamRole::Follower && self.numbering == Numbering::Numbered {
            fresh.source = Some("nats");
        }
        status.publish(fresh);
    }
}

/// Returns what is recorded of accepted batches in a role.
fn record_in(role: StreamRole) -> AcceptedRecord {
    if role == StreamRole::Owner {
        AcceptedRecord::Batches
    } else {
        AcceptedRecord::Positions
    }
}
