//! The task behind a NATS source: feeds a subject's messages to its [`ReplayingDriver`].
//!
//! The stream counts as connected from the first sign of a relay that is connected to its engine,
//! not from the connection to the server, which says nothing about the engine.

use std::sync::Arc;

use kv_events::Input;
use nats_client::{ConnectionEvent, NatsConnection, backoff};
use net::Clock;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use super::{
    NatsSpec,
    relay_liveness::RelayLiveness,
    request::NatsRequester,
    subscription_queue::{QueuedMessage, SubscriptionQueue, SubscriptionQueueSettings, WhenFull},
    wire::{self, EngineLinkNote, RelayMessage},
};
use crate::{
    BlockSink,
    follower::{GO, PENDING_BYTES, TICK},
    handle::{SourceControl, StatusSender},
    replay::{ReplayEvent, ReplayRun, next_answer},
    replaying_driver::ReplayingDriver,
    stream_driver::StreamDriver,
};

/// Follows one subject until stopped.
pub(crate) struct NatsFollower {
    spec: NatsSpec,
    sink: Arc<dyn BlockSink>,
    clock: Clock,
    status: StatusSender,
    stream: ReplayingDriver,
    liveness: RelayLiveness,
    /// The running liveness check of the relay.
    ping: Option<ReplayRun>,
}

/// Reasons why the loop wakes up.
enum Wake {
    Live(Option<QueuedMessage>),
    Link(ConnectionEvent),
    Replay(Option<ReplayEvent>),
    Ping(Option<ReplayEvent>),
    Tick,
    Resync,
    Stop,
}

#[derive(Debug)]
enum FollowEnd {
    Stopped,
    Quarantined,
    Lost(String),
}

impl NatsFollower {
    pub(crate) fn new(
        spec: NatsSpec,
        sink: Arc<dyn BlockSink>,
        clock: Clock,
        status_sender: StatusSender,
    ) -> Self {
        let driver = StreamDriver::new(spec.driver_spec(), Arc::clone(&sink), clock);
        let stream = ReplayingDriver::new(driver, Arc::clone(&spec.worker), Box::new(|_| None));
        Self {
            spec,
            sink,
            clock,
            status: status_sender,
            stream,
            liveness: RelayLiveness::default(),
            ping: None,
        }
    }

    pub(crate) async fn run(mut self, mut control: SourceControl) {
        self.sink.register(self.spec.target, &self.spec.model);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut backoff = backoff::reconnects();
        loop {
            let started = self.clock.now();
            let ended = match self.connect(&mut control).await {
                Ok((link, intake)) => self.follow(link, intake, &mut ticks, &mut control).await,
                Err(ended) => ended,
            };
            // Dropped with the connection, so that no part of it outlives it.
            self.ping = None;
            self.liveness = RelayLiveness::default();
            self.stream.set_requester(Box::new(|_| None));
            let wait = match ended {
                FollowEnd::Stopped => return,
                FollowEnd::Quarantined => self
                    .stream
                    .driver
                    .quarantined_until()
                    .unwrap_or_default()
                    .since(self.clock.now()),
                FollowEnd::Lost(reason) => {
                    self.stream.disconnected();
                    self.stream.driver.record_fault(reason);
                    let lasted = self.clock.now().since(started);
                    backoff::wait(&mut backoff, lasted, runtime::chance())
                }
            };
            self.publish();
            tokio::select! {
                () = sleep(wait) => {}
                _ = &mut control.stop => return,
            }
            self.stream.driver.end_quarantine();
            self.publish();
        }
    }

    /// Makes one connection attempt.
    async fn connect(
        &self,
        control: &mut SourceControl,
    ) -> Result<(NatsConnection, SubscriptionQueue), FollowEnd> {
        let dial = self.spec.dial();
        let opened = tokio::select! {
            opened = dial.open() => opened,
            _ = &mut control.stop => return Err(FollowEnd::Stopped),
        };
        let lost = |error: &dyn std::error::Error| FollowEnd::Lost(error.to_string());
        let link = opened.map_err(|error| lost(&error))?;
        let subject = self.spec.endpoint.subject().to_string();
        let subscriber = link
            .client
            .subscribe(subject)
            .await
            .map_err(|error| lost(&error))?;
        let max_message = self.spec.settings.max_message;
        let settings = SubscriptionQueueSettings {
            max_message,
            max_bytes: PENDING_BYTES,
            when_full: WhenFull::Drop,
        };
        Ok((link, SubscriptionQueue::start(subscriber, settings)))
    }

    async fn follow(
        &mut self,
        mut link: NatsConnection,
        mut intake: SubscriptionQueue,
        ticks: &mut Interval,
        control: &mut SourceControl,
    ) -> FollowEnd {
        let asker = self.spec.requester(&link);
        let history = asker.clone();
        self.stream
            .set_requester(Box::new(move |from| Some(history.clone().history(from))));
        loop {
            let wake = tokio::select! {
                taken = intake.next() => Wake::Live(taken),
                event = link.next() => Wake::Link(event),
                answer = self.stream.next_answer() => Wake::Replay(answer),
                answer = next_answer(&mut self.ping) => Wake::Ping(answer),
                _ = ticks.tick() => Wake::Tick,
                () = control.resync.notified() => Wake::Resync,
                _ = &mut control.stop => Wake::Stop,
            };
            match wake {
                Wake::Live(Some(taken)) => self.burst(taken, &mut intake),
                Wake::Live(None) | Wake::Link(ConnectionEvent::Down) => {
                    tracing::warn!(worker = %self.spec.worker, endpoint = %self.spec.endpoint, "event stream lost");
                    return FollowEnd::Lost(format!(
                        "the connection to {} was lost",
                        self.spec.endpoint.server()
                    ));
                }
                Wake::Link(ConnectionEvent::Fault(error)) => self.stream.driver.record_fault(error),
                Wake::Replay(answer) => self.replayed(answer),
                Wake::Ping(answer) => self.pinged(answer),
                Wake::Tick => self.tick(&asker),
                Wake::Resync => self.stream.feed(Input::Resync),
                Wake::Stop => return FollowEnd::Stopped,
            }
            self.publish();
            if self.stream.driver.is_quarantined() {
                return FollowEnd::Quarantined;
            }
            // Reading from a buffer never awaits, so the loop yields explicitly.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Takes a message and the messages already buffered behind it, so that a burst costs one
    /// publication.
    fn burst(&mut self, first: QueuedMessage, intake: &mut SubscriptionQueue) {
        let now = self.clock.now();
        let mut next = Some(first);
        for _ in 0..GO {
            let Some(taken) = next else { break };
            self.live(taken, now);
            if self.stream.driver.is_quarantined() {
                return;
            }
            next = intake.try_next();
        }
        // Counted only after the messages in front of them.
        for _ in 0..intake.take_dropped() {
            self.stream.driver.record_dropped();
        }
    }

    fn live(&mut self, taken: QueuedMessage, now: kv_blocks::Moment) {
        let message = match taken {
            QueuedMessage::Message(message) => message,
            QueuedMessage::TooLarge(bytes) => {
                let limit = self.spec.settings.max_message;
                self.stream.driver.record_dropped();
                self.stream.driver.record_fault(format!(
                    "a message of {bytes} bytes was let go: at most {limit} are accepted"
                ));
                return;
            }
        };
        match wire::published(&message) {
            // As over ZMQ, where messages of other topics do not arrive at all.
            Ok(RelayMessage::Batch { topic, .. }) if !topic.starts_with(&self.spec.topic) => {}
            Ok(RelayMessage::Batch { seq, payload, .. }) => {
                self.record_activity(now);
                self.stream.batch(Some(seq), payload);
            }
            Ok(RelayMessage::Note(EngineLinkNote::Connected)) => {
                // Also when the relay was present before: this is a new connection, maybe to
                // another life of the engine.
                self.liveness.record_seen(now);
                self.stream.connected();
            }
            Ok(RelayMessage::Note(EngineLinkNote::Disconnected)) => {
                self.missed("the relay lost its connection to the engine".into())
            }
            Err(error) => self.stream.driver.record_unreadable(error.to_string()),
        }
    }

    /// Records a sign of a relay that follows its engine.
    fn record_activity(&mut self, now: kv_blocks::Moment) {
        if self.liveness.record_seen(now) {
            self.stream.connected();
        }
    }

    /// Ends the stream, whatever the state of the connection to the server.
    fn missed(&mut self, reason: String) {
        if self.liveness.record_missed(self.clock.now()) {
            self.stream.disconnected();
        }
        self.stream.driver.record_fault(reason);
    }

    fn replayed(&mut self, answer: Option<ReplayEvent>) {
        // A liveness check follows at once, to distinguish an engine's failure from the relay's.
        if let Some(ReplayEvent::Failed(_)) | None = &answer {
            self.liveness.request_check();
        }
        self.stream.replay_burst(answer);
    }

    fn pinged(&mut self, answer: Option<ReplayEvent>) {
        self.ping = None;
        match answer {
            Some(ReplayEvent::End | ReplayEvent::Batch { .. }) => {
                self.record_activity(self.clock.now())
            }
            Some(ReplayEvent::Failed(error)) => self.missed(error.to_string()),
            None => self.missed("the question whether the relay is there was not answered".into()),
        }
    }

    fn tick(&mut self, asker: &NatsRequester) {
        self.stream.feed(Input::Tick);
        if self.ping.is_none() && self.liveness.is_due(self.clock.now()) {
            self.ping = Some(asker.clone().ping());
        }
    }

    fn publish(&self) {
        self.status.publish(self.stream.driver.status());
    }
}
