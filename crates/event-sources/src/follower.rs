//! The task behind a source: sockets on one side, the index on the other, the sequencer in between.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use kv_blocks::Moment;
use kv_events::{Action, Input, Sequencer, SequencerSettings, StreamState, frames};
use kv_index::KvIndex;
use net::Clock;
use tokio::{
    sync::{Notify, oneshot, watch},
    time::{Interval, MissedTickBehavior},
};
use zmtp::{Limits, Sub, SubEvent};

use crate::{
    SourceSpec,
    quarantine::Quarantine,
    replay::{Answer, ReplayRun, next_answer},
    status::{Status, Totals},
};

/// How often time-outs are looked at.
const TICK: Duration = Duration::from_millis(250);
/// Messages taken in one go, before the status is published and other tasks get their turn.
const GO: usize = 256;
/// Bytes of live batches kept beside a replay, on top of the bound on their number.
const PENDING_BYTES: usize = 64 << 20;
/// Pause before a socket that could not be bound is tried again.
const REBIND: Duration = Duration::from_secs(5);

/// Follows one stream until told to stop.
#[derive(Debug)]
pub(crate) struct Follower {
    spec: SourceSpec,
    index: Arc<KvIndex>,
    clock: Clock,
    status: watch::Sender<Status>,
    versions: watch::Sender<u64>,
    sequencer: Sequencer,
    /// Totals of sequencers before this one, and of messages that never reached one.
    past: Totals,
    quarantine: Quarantine,
    quarantined_until: Option<Moment>,
    past_epochs: u64,
    /// The connection that is the stream: where several publishers connect to a bound socket, the newest.
    peer: Option<u64>,
    connected_at: Option<Moment>,
    replay: Option<ReplayRun>,
    lag_ms: Option<f64>,
    last_error: Option<String>,
}

/// What the loop woke up for.
enum Wake {
    Live(SubEvent),
    Replay(Option<Answer>),
    Tick,
    Resync,
    Stop,
}

impl Follower {
    pub(crate) fn new(
        spec: SourceSpec,
        index: Arc<KvIndex>,
        clock: Clock,
        status: watch::Sender<Status>,
        versions: watch::Sender<u64>,
    ) -> Self {
        Self {
            sequencer: sequencer(&spec),
            spec,
            index,
            clock,
            status,
            versions,
            past: Totals::default(),
            quarantine: Quarantine::default(),
            quarantined_until: None,
            past_epochs: 0,
            peer: None,
            connected_at: None,
            replay: None,
            lag_ms: None,
            last_error: None,
        }
    }

    /// `resync`: told when everything is to be fetched anew.
    pub(crate) async fn run(mut self, mut stop: oneshot::Receiver<()>, resync: Arc<Notify>) {
        self.index.register(self.spec.target, Arc::clone(&self.spec.model));
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Some(mut sub) = self.open(&mut stop).await else { return };
            if self.follow(&mut sub, &mut ticks, &mut stop, &resync).await == Ended::Stopped {
                return;
            }
            // Quarantined. The connections are closed: a publisher owes nothing to a subscriber that is not there.
            drop(sub);
            self.replay = None;
            let until = self.quarantined_until.unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(until.since(self.clock.now())) => {}
                _ = &mut stop => return,
            }
            self.quarantined_until = None;
            self.publish();
        }
    }

    /// Makes the live socket; `None`: told to stop.
    async fn open(&mut self, stop: &mut oneshot::Receiver<()>) -> Option<Sub> {
        let topic = self.spec.topic.clone();
        loop {
            let limits = self.limits();
            let made = if self.spec.bind {
                let bound = Sub::bind(&self.spec.endpoint, &[topic.as_bytes()], limits).await;
                bound.map(|(sub, _)| sub).map_err(|error| error.to_string())
            } else {
                Sub::connect(&self.spec.endpoint, &[topic.as_bytes()], limits).map_err(|error| error.to_string())
            };
            match made {
                Ok(sub) => return Some(sub),
                Err(error) => self.fault(error),
            }
            self.publish();
            tokio::select! {
                () = tokio::time::sleep(REBIND) => {}
                _ = &mut *stop => return None,
            }
        }
    }

    async fn follow(
        &mut self,
        sub: &mut Sub,
        ticks: &mut Interval,
        stop: &mut oneshot::Receiver<()>,
        resync: &Notify,
    ) -> Ended {
        loop {
            let wake = tokio::select! {
                event = sub.next() => Wake::Live(event),
                answer = next_answer(&mut self.replay) => Wake::Replay(answer),
                _ = ticks.tick() => Wake::Tick,
                () = resync.notified() => Wake::Resync,
                _ = &mut *stop => Wake::Stop,
            };
            match wake {
                Wake::Live(event) => {
                    self.burst(event, || sub.next().now_or_never());
                }
                Wake::Replay(answer) => self.replay_burst(answer),
                Wake::Tick => self.feed(Input::Tick),
                Wake::Resync => self.feed(Input::Resync),
                Wake::Stop => return Ended::Stopped,
            }
            self.publish();
            if self.quarantined_until.is_some() {
                return Ended::Quarantined;
            }
            // Reading what is buffered awaits nothing, so the turn is given up by hand.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Takes an event and what is there behind it, so that a burst costs one publication. Nothing is taken once the
    /// stream is quarantined: a connection made then would be asked for its history in the middle of the sentence.
    fn burst(&mut self, first: SubEvent, mut next: impl FnMut() -> Option<SubEvent>) {
        self.live(first);
        for _ in 1..GO {
            if self.quarantined_until.is_some() {
                return;
            }
            let Some(event) = next() else { return };
            self.live(event);
        }
    }

    fn live(&mut self, event: SubEvent) {
        match event {
            SubEvent::Connected { peer } => {
                if self.peer.replace(peer).is_some() {
                    self.feed(Input::Disconnected);
                }
                self.connected_at = Some(self.clock.now());
                tracing::info!(worker = %self.spec.worker, endpoint = %self.spec.endpoint, "event stream connected");
                self.feed(Input::Connected);
            }
            SubEvent::Message { peer, .. } if self.peer != Some(peer) => self.past.dropped(),
            SubEvent::Message { frames, .. } => match frames::live(&frames) {
                Ok(live) => {
                    self.feed(Input::Live { seq: live.seq, payload: live.payload });
                    self.lag_ms = self.sequencer.last_batch_ts().map(|ts| self.ms_since(ts));
                }
                Err(error) => {
                    self.past.unreadable();
                    self.fault(error.to_string());
                    self.judge(1);
                }
            },
            SubEvent::Disconnected { peer, reason } => {
                tracing::warn!(worker = %self.spec.worker, endpoint = %self.spec.endpoint, reason, "event stream lost");
                if self.peer == Some(peer) {
                    self.disconnected();
                }
                self.fault(reason);
            }
            SubEvent::Unreachable { reason } => self.fault(reason),
        }
    }

    /// Takes an answer and what was read behind it; each time of the request that runs then, since an answer may be the
    /// reason to ask anew.
    fn replay_burst(&mut self, first: Option<Answer>) {
        self.replayed(first);
        for _ in 1..GO {
            let Some(answer) = self.replay.as_mut().and_then(ReplayRun::read_already) else { return };
            self.replayed(Some(answer));
        }
    }

    fn replayed(&mut self, answer: Option<Answer>) {
        match answer {
            Some(Answer::Batch { seq, payload }) => self.feed(Input::ReplayBatch { seq, payload: &payload }),
            Some(Answer::End) => {
                self.replay = None;
                self.feed(Input::ReplayEnd);
            }
            Some(Answer::Failed(error)) => {
                self.replay = None;
                self.feed(Input::ReplayFailed);
                if self.replay.is_some() {
                    // Not a fault, it goes on: a long answer may have lost its end.
                    tracing::info!(worker = %self.spec.worker, %error, "replay asked for again");
                } else if self.quarantined_until.is_none() {
                    self.fault(error.to_string());
                }
            }
            None => {
                self.replay = None;
                self.feed(Input::ReplayFailed);
            }
        }
    }

    /// Asks the sequencer and does as it says.
    fn feed(&mut self, input: Input<'_>) {
        let before = self.sequencer.counts().decode_errors;
        for action in self.sequencer.on(self.clock.now(), input) {
            match action {
                Action::Apply(update) => {
                    let done = self.index.apply(self.spec.target, &update);
                    self.sequencer.record(done.applied, done.orphans, done.ignored);
                }
                Action::Clear => self.index.clear(self.spec.target),
                Action::Hole => self.index.hole(self.spec.target),
                Action::RequestReplay { from } => self.replay = self.request(from),
            }
        }
        let errors = self.sequencer.counts().decode_errors - before;
        if errors > 0 {
            self.last_error = self.sequencer.last_error().map(str::to_owned);
            self.judge(errors);
        }
    }

    fn request(&self, from: u64) -> Option<ReplayRun> {
        let endpoint = self.spec.replay_endpoint.clone()?;
        Some(ReplayRun::start(endpoint, from, self.limits(), self.spec.settings.replay_timeout))
    }

    fn disconnected(&mut self) {
        self.peer = None;
        self.connected_at = None;
        self.replay = None;
        self.feed(Input::Disconnected);
    }

    /// Counts errors against the publisher. With too many of them nothing it said is believed any longer.
    fn judge(&mut self, errors: u64) {
        let Some(until) = self.quarantine.note(self.clock.now(), errors) else { return };
        tracing::warn!(worker = %self.spec.worker, endpoint = %self.spec.endpoint, error = self.last_error,
            "event stream quarantined: too many undecodable messages");
        self.quarantined_until = Some(until);
        self.index.clear(self.spec.target);
        self.past = self.past.plus(&self.sequencer);
        self.past_epochs += self.sequencer.epoch();
        self.sequencer = sequencer(&self.spec);
        self.peer = None;
        self.connected_at = None;
        self.replay = None;
    }

    fn fault(&mut self, error: String) {
        self.last_error = Some(error);
    }

    fn state(&self) -> StreamState {
        if self.quarantined_until.is_some() {
            return StreamState::Quarantined;
        }
        let heard = self.sequencer.last_event_at().max(self.connected_at);
        let quiet = heard.is_some_and(|heard| self.clock.now().since(heard) >= self.spec.settings.stale_after);
        match self.sequencer.state() {
            StreamState::Live if quiet => StreamState::Stale,
            state => state,
        }
    }

    fn publish(&self) {
        let fresh = Status {
            state: self.state(),
            epoch: self.past_epochs + self.sequencer.epoch(),
            last_seq: self.sequencer.last_seq(),
            lag_events: self.sequencer.lag_events(),
            lag_ms: self.lag_ms,
            last_event_at: self.sequencer.last_event_at(),
            block_size: self.sequencer.announced_block_size(),
            rank: self.sequencer.announced_rank(),
            last_error: self.last_error.clone(),
            totals: self.past.plus(&self.sequencer),
        };
        if *self.status.borrow() != fresh {
            self.status.send_replace(fresh);
            self.versions.send_modify(|version| *version += 1);
        }
    }

    fn ms_since(&self, ts: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit into 53 bits for a long time")]
        let now = self.clock.unix_ms() as f64;
        (now - ts * 1e3).max(0.0)
    }

    fn limits(&self) -> Limits {
        Limits { max_message: self.spec.settings.max_message, max_frames: 8, ..Limits::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Stopped,
    Quarantined,
}

fn sequencer(spec: &SourceSpec) -> Sequencer {
    Sequencer::new(SequencerSettings {
        replay: spec.replay_endpoint.is_some(),
        max_pending_batches: spec.settings.queue_batches,
        max_pending_bytes: PENDING_BYTES.max(spec.settings.max_message),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kv_blocks::{DpRank, Target, WorkerId};
    use kv_index::IndexSettings;

    use super::*;
    use crate::SourceSettings;

    #[tokio::test]
    async fn a_connection_behind_the_last_straw_is_not_asked_for_its_history() {
        let endpoint = |text: &str| text.parse().expect("an endpoint");
        let spec = SourceSpec {
            target: Target { worker: WorkerId(0), rank: DpRank(0) },
            worker: "w".into(),
            model: "m".into(),
            endpoint: endpoint("tcp://127.0.0.1:1"),
            replay_endpoint: Some(endpoint("tcp://127.0.0.1:1")),
            topic: String::new(),
            bind: true,
            settings: SourceSettings::default(),
        };
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let (status, versions) = (watch::Sender::default(), watch::Sender::default());
        let mut follower = Follower::new(spec, index, Clock::system(), status, versions);
        follower.live(SubEvent::Connected { peer: 1 });
        // One frame is no message at all.
        let garbage = || SubEvent::Message { peer: 1, frames: vec![Bytes::from_static(b"garbage")] };
        for _ in 0..99 {
            follower.live(garbage());
        }
        assert!(follower.quarantined_until.is_none());
        let mut behind = vec![SubEvent::Connected { peer: 2 }];
        follower.burst(garbage(), || behind.pop());
        assert!(follower.quarantined_until.is_some());
        assert_eq!(behind.len(), 1, "nothing is taken behind the last straw");
        assert!(follower.replay.is_none());
    }
}
