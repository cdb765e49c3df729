//! The task behind a NATS source: a subject on one side, its [`RepairedTrack`] on the other.
//!
//! The stream counts as connected from the first sign of a relay that is connected to its engine, not from the connection
//! to the server: that one says nothing about the engine.

use std::sync::Arc;

use kv_events::Input;
use net::Clock;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use super::{
    NatsSpec,
    ask::Asker,
    backoff::Backoff,
    dial::{Link, LinkEvent},
    intake::{Intake, IntakeSettings, Taken, WhenFull},
    knocking::Knocking,
    wire::{self, Note, Published},
};
use crate::{
    BlockSink,
    follower::{GO, PENDING_BYTES, TICK},
    handle::{Orders, Outlet},
    repaired_track::RepairedTrack,
    replay::{Answer, ReplayRun, next_answer},
    track::Track,
};

/// Follows one subject until told to stop.
pub(crate) struct NatsFollower {
    spec: NatsSpec,
    sink: Arc<dyn BlockSink>,
    clock: Clock,
    outlet: Outlet,
    stream: RepairedTrack,
    knocking: Knocking,
    /// Running while the relay is asked whether it is there.
    knock: Option<ReplayRun>,
}

/// What the loop woke up for.
enum Wake {
    Live(Option<Taken>),
    Link(LinkEvent),
    Replay(Option<Answer>),
    Knock(Option<Answer>),
    Tick,
    Resync,
    Stop,
}

#[derive(Debug)]
enum Ended {
    Stopped,
    Quarantined,
    Lost(String),
}

impl NatsFollower {
    pub(crate) fn new(
        spec: NatsSpec,
        sink: Arc<dyn BlockSink>,
        clock: Clock,
        outlet: Outlet,
    ) -> Self {
        let track = Track::new(spec.track(), Arc::clone(&sink), clock);
        let stream = RepairedTrack::new(track, Arc::clone(&spec.worker), Box::new(|_| None));
        Self {
            spec,
            sink,
            clock,
            outlet,
            stream,
            knocking: Knocking::default(),
            knock: None,
        }
    }

    pub(crate) async fn run(mut self, mut orders: Orders) {
        self.sink.register(self.spec.target, &self.spec.model);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut backoff = Backoff::default();
        loop {
            let started = self.clock.now();
            let ended = match self.connect(&mut orders).await {
                Ok((link, intake)) => self.follow(link, intake, &mut ticks, &mut orders).await,
                Err(ended) => ended,
            };
            // Dropped with the connection, so that nothing of it lives on.
            self.knock = None;
            self.knocking = Knocking::default();
            self.stream.ask_by(Box::new(|_| None));
            let wait = match ended {
                Ended::Stopped => return,
                Ended::Quarantined => self
                    .stream
                    .track
                    .quarantined_until()
                    .unwrap_or_default()
                    .since(self.clock.now()),
                Ended::Lost(reason) => {
                    self.stream.disconnected();
                    self.stream.track.fault(reason);
                    backoff.after(self.clock.now().since(started))
                }
            };
            self.publish();
            tokio::select! {
                () = sleep(wait) => {}
                _ = &mut orders.stop => return,
            }
            self.stream.track.release();
            self.publish();
        }
    }

    /// One attempt.
    async fn connect(&self, orders: &mut Orders) -> Result<(Link, Intake), Ended> {
        let dial = self.spec.dial();
        let opened = tokio::select! {
            opened = dial.open() => opened,
            _ = &mut orders.stop => return Err(Ended::Stopped),
        };
        let lost = |error: &dyn std::error::Error| Ended::Lost(error.to_string());
        let link = opened.map_err(|error| lost(&error))?;
        let subject = self.spec.endpoint.subject().to_string();
        let subscriber = link
            .client
            .subscribe(subject)
            .await
            .map_err(|error| lost(&error))?;
        let max_message = self.spec.settings.max_message;
        let settings = IntakeSettings {
            max_message,
            room: PENDING_BYTES,
            when_full: WhenFull::LetGo,
        };
        Ok((link, Intake::start(subscriber, settings)))
    }

    async fn follow(
        &mut self,
        mut link: Link,
        mut intake: Intake,
        ticks: &mut Interval,
        orders: &mut Orders,
    ) -> Ended {
        let asker = self.spec.asker(&link);
        let history = asker.clone();
        self.stream
            .ask_by(Box::new(move |from| Some(history.clone().history(from))));
        loop {
            let wake = tokio::select! {
                taken = intake.next() => Wake::Live(taken),
                event = link.next() => Wake::Link(event),
                answer = self.stream.next_answer() => Wake::Replay(answer),
                answer = next_answer(&mut self.knock) => Wake::Knock(answer),
                _ = ticks.tick() => Wake::Tick,
                () = orders.resync.notified() => Wake::Resync,
                _ = &mut orders.stop => Wake::Stop,
            };
            match wake {
                Wake::Live(Some(taken)) => self.burst(taken, &mut intake),
                Wake::Live(None) | Wake::Link(LinkEvent::Down) => {
                    tracing::warn!(worker = %self.spec.worker, endpoint = %self.spec.endpoint, "event stream lost");
                    return Ended::Lost(format!(
                        "the connection to {} was lost",
                        self.spec.endpoint.server()
                    ));
                }
                Wake::Link(LinkEvent::Fault(error)) => self.stream.track.fault(error),
                Wake::Replay(answer) => self.replayed(answer),
                Wake::Knock(answer) => self.knocked(answer),
                Wake::Tick => self.tick(&asker),
                Wake::Resync => self.stream.feed(Input::Resync),
                Wake::Stop => return Ended::Stopped,
            }
            self.publish();
            if self.stream.track.is_quarantined() {
                return Ended::Quarantined;
            }
            // Reading what is buffered awaits nothing, so the turn is given up by hand.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Takes a message and what is there behind it, so that a burst costs one publication.
    fn burst(&mut self, first: Taken, intake: &mut Intake) {
        let now = self.clock.now();
        let mut next = Some(first);
        for _ in 0..GO {
            let Some(taken) = next else { break };
            self.live(taken, now);
            if self.stream.track.is_quarantined() {
                return;
            }
            next = intake.next_now();
        }
        // Only after what came before them.
        for _ in 0..intake.take_let_go() {
            self.stream.track.dropped();
        }
    }

    fn live(&mut self, taken: Taken, now: kv_blocks::Moment) {
        let message = match taken {
            Taken::Message(message) => message,
            Taken::TooLarge(bytes) => {
                let limit = self.spec.settings.max_message;
                self.stream.track.dropped();
                self.stream.track.fault(format!(
                    "a message of {bytes} bytes was let go: at most {limit} are accepted"
                ));
                return;
            }
        };
        match wire::published(&message) {
            // As over ZMQ, where others' topics do not even arrive.
            Ok(Published::Batch { topic, .. }) if !topic.starts_with(&self.spec.topic) => {}
            Ok(Published::Batch { seq, payload, .. }) => {
                self.heard(now);
                self.stream.batch(Some(seq), payload);
            }
            Ok(Published::Note(Note::Connected)) => {
                // Also when it was there before: this is a connection of its own, maybe to another life of the engine.
                self.knocking.heard(now);
                self.stream.connected();
            }
            Ok(Published::Note(Note::Disconnected)) => {
                self.missed("the relay lost its connection to the engine".into())
            }
            Err(error) => self.stream.track.unreadable(error.to_string()),
        }
    }

    /// A sign of a relay that follows its engine.
    fn heard(&mut self, now: kv_blocks::Moment) {
        if self.knocking.heard(now) {
            self.stream.connected();
        }
    }

    /// The stream is over, whatever the connection to the server does.
    fn missed(&mut self, reason: String) {
        if self.knocking.missed(self.clock.now()) {
            self.stream.disconnected();
        }
        self.stream.track.fault(reason);
    }

    fn replayed(&mut self, answer: Option<Answer>) {
        // Whether that is the engine's fault or the relay's is asked at once.
        if let Some(Answer::Failed(_)) | None = &answer {
            self.knocking.doubt();
        }
        self.stream.replay_burst(answer);
    }

    fn knocked(&mut self, answer: Option<Answer>) {
        self.knock = None;
        match answer {
            Some(Answer::End | Answer::Batch { .. }) => self.heard(self.clock.now()),
            Some(Answer::Failed(error)) => self.missed(error.to_string()),
            None => self.missed("the question whether the relay is there was not answered".into()),
        }
    }

    fn tick(&mut self, asker: &Asker) {
        self.stream.feed(Input::Tick);
        if self.knock.is_none() && self.knocking.is_due(self.clock.now()) {
            self.knock = Some(asker.clone().knock());
        }
    }

    fn publish(&self) {
        self.outlet.show(self.stream.track.status());
    }
}
