//! The task behind a ZMQ source of one publisher: feeds the sockets' messages to its
//! [`ReplayingDriver`].

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use kv_events::Input;
use net::Clock;
use tokio::{
    sync::oneshot,
    time::{Interval, MissedTickBehavior},
};
use zmtp::{Limits, Sub, SubEvent};

use crate::{
    BlockSink, SourceSettings, SourceSpec,
    handle::{SourceControl, StatusSender},
    replay::{ReplayEvent, ReplaySocket},
    replaying_driver::{ReplayRequester, ReplayingDriver},
    stream_driver::StreamDriver,
};

/// Interval of time-out checks.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// Most messages per burst, before the status is published and other tasks run.
pub(crate) const GO: usize = 256;
/// Bytes of live batches queued during a replay, on top of the bound on their number.
pub(crate) const PENDING_BYTES: usize = 64 << 20;
/// Pause before the next attempt to bind a socket.
pub(crate) const REBIND: Duration = Duration::from_secs(5);

/// Follows one stream until stopped.
pub(crate) struct ZmqFollower {
    spec: SourceSpec,
    sink: Arc<dyn BlockSink>,
    clock: Clock,
    status: StatusSender,
    stream: ReplayingDriver,
    /// The connection that carries the stream: where several publishers connect to a bound socket,
    /// the newest.
    peer: Option<u64>,
}

/// Reasons why the loop wakes up.
enum Wake {
    Live(SubEvent),
    Replay(Option<ReplayEvent>),
    Tick,
    Resync,
    Stop,
}

impl ZmqFollower {
    pub(crate) fn new(
        spec: SourceSpec,
        sink: Arc<dyn BlockSink>,
        clock: Clock,
        status_sender: StatusSender,
    ) -> Self {
        let driver = StreamDriver::new(spec.driver_spec(), Arc::clone(&sink), clock);
        let stream =
            ReplayingDriver::new(driver, Arc::clone(&spec.worker), spec.replay_requester());
        Self {
            spec,
            sink,
            clock,
            status: status_sender,
            stream,
            peer: None,
        }
    }

    pub(crate) async fn run(mut self, mut control: SourceControl) {
        self.sink.register(self.spec.target, &self.spec.model);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Some(mut sub) = self.open(&mut control.stop).await else {
                return;
            };
            if self.follow(&mut sub, &mut ticks, &mut control).await == FollowEnd::Stopped {
                return;
            }
            // Quarantined. The connections are closed, so the publisher sends nothing meanwhile.
            drop(sub);
            self.peer = None;
            let until = self.stream.driver.quarantined_until().unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(until.since(self.clock.now())) => {}
                _ = &mut control.stop => return,
            }
            self.stream.driver.end_quarantine();
            self.publish();
        }
    }

    /// Opens the live socket; returns `None` when stopped.
    async fn open(&mut self, stop: &mut oneshot::Receiver<()>) -> Option<Sub> {
        let topic = self.spec.topic.clone();
        loop {
            let limits = self.spec.limits();
            let made = if self.spec.bind {
                let bound = Sub::bind(&self.spec.endpoint, &[topic.as_bytes()], limits).await;
                bound.map(|(sub, _)| sub).map_err(|error| error.to_string())
            } else {
                Sub::connect(&self.spec.endpoint, &[topic.as_bytes()], limits)
                    .map_err(|error| error.to_string())
            };
            match made {
                Ok(sub) => return Some(sub),
                Err(error) => self.stream.driver.record_fault(error),
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
        control: &mut SourceControl,
    ) -> FollowEnd {
        loop {
            let wake = tokio::select! {
                event = sub.next() => Wake::Live(event),
                answer = self.stream.next_answer() => Wake::Replay(answer),
                _ = ticks.tick() => Wake::Tick,
                () = control.resync.notified() => Wake::Resync,
                _ = &mut control.stop => Wake::Stop,
            };
            match wake {
                Wake::Live(event) => {
                    self.burst(event, || sub.next().now_or_never());
                }
                Wake::Replay(answer) => self.stream.replay_burst(answer),
                Wake::Tick => self.stream.feed(Input::Tick),
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

    /// Takes an event and the events already buffered behind it, so that a burst costs one
    /// publication. Takes nothing from a quarantined stream: a new connection would trigger a
    /// history request before the quarantine ends.
    fn burst(&mut self, first: SubEvent, mut next: impl FnMut() -> Option<SubEvent>) {
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
                self.stream.driver.record_dropped()
            }
            SubEvent::Message { frames, .. } => self.stream.live(&frames),
            SubEvent::Disconnected { peer, reason } => {
                tracing::warn!(worker = %self.spec.worker, endpoint = %self.spec.endpoint, reason, "event stream lost");
                if self.peer == Some(peer) {
                    self.peer = None;
                    self.stream.disconnected();
                }
                self.stream.driver.record_fault(reason);
            }
            SubEvent::Unreachable { reason, .. } => self.stream.driver.log_fault(reason),
        }
    }

    fn publish(&self) {
        self.status.publish(self.stream.driver.status());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowEnd {
    Stopped,
    Quarantined,
}

impl SourceSpec {
    pub(crate) fn limits(&self) -> Limits {
        let SourceSettings {
            destinations,
            max_message,
            ..
        } = &self.settings;
        Limits {
            destinations: destinations.clone(),
            max_message: *max_message,
            max_frames: 8,
            ..Limits::default()
        }
    }

    /// Builds the function that requests replays; without a replay socket it requests none.
    pub(crate) fn replay_requester(&self) -> ReplayRequester {
        let socket = self.replay_endpoint.clone().map(|endpoint| ReplaySocket {
            endpoint,
            limits: self.limits(),
            patience: self.settings.replay_timeout,
        });
        Box::new(move |from| Some(socket.clone()?.history(from)))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kv_blocks::{DpRank, Target, WorkerId};
    use kv_index::{IndexSettings, KvIndex};

    use super::*;

    #[tokio::test]
    async fn a_quarantined_stream_requests_no_history_on_a_new_connection() {
        let endpoint = |text: &str| text.parse().expect("an endpoint");
        let target = Target {
            worker: WorkerId(0),
            rank: DpRank(0),
        };
        let mut spec = SourceSpec::new(target, "w", "m", endpoint("tcp://127.0.0.1:1"));
        spec.replay_endpoint = Some(endpoint("tcp://127.0.0.1:1"));
        spec.bind = true;
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        let mut follower = ZmqFollower::new(spec, index, Clock::system(), StatusSender::default());
        follower.live(SubEvent::Connected {
            peer: 1,
            address: None,
        });
        // A message has more than one frame.
        let garbage = || SubEvent::Message {
            peer: 1,
            frames: vec![Bytes::from_static(b"garbage")],
        };
        for _ in 0..99 {
            follower.live(garbage());
        }
        assert!(!follower.stream.driver.is_quarantined());
        let mut behind = vec![SubEvent::Connected {
            peer: 2,
            address: None,
        }];
        follower.burst(garbage(), || behind.pop());
        assert!(follower.stream.driver.is_quarantined());
        assert_eq!(behind.len(), 1, "the burst stops at the quarantine");
        assert!(!follower.stream.is_replaying());
    }
}
