//! A stream driver with the replays that fill its gaps, over any transport.

use std::sync::Arc;

use bytes::Bytes;
use kv_events::Input;

use crate::{
    follower::GO,
    replay::{ReplayEvent, ReplayRun, next_answer},
    stream_driver::StreamDriver,
};

/// Starts a replay from a number on; returns `None` if there is no replay endpoint.
pub(crate) type ReplayRequester = Box<dyn Fn(u64) -> Option<ReplayRun> + Send + Sync>;

/// One stream without its live socket. Runs the replays that its driver requests, one at a time,
/// and drops the rest of an answer once the stream is quarantined.
pub(crate) struct ReplayingDriver {
    pub(crate) driver: StreamDriver,
    /// The worker's name, for the log.
    worker: Arc<str>,
    requester: ReplayRequester,
    replay: Option<ReplayRun>,
}

impl ReplayingDriver {
    pub(crate) fn new(driver: StreamDriver, worker: Arc<str>, requester: ReplayRequester) -> Self {
        Self {
            driver,
            worker,
            requester,
            replay: None,
        }
    }

    /// Replaces the requester; ends the running replay.
    #[cfg(feature = "nats")]
    pub(crate) fn set_requester(&mut self, requester: ReplayRequester) {
        self.requester = requester;
        self.replay = None;
    }

    pub(crate) fn connected(&mut self) {
        let requested = self.driver.connected();
        self.follow_up(requested);
    }

    pub(crate) fn disconnected(&mut self) {
        self.replay = None;
        self.driver.disconnected();
    }

    /// Takes a message of the live socket, as frames.
    pub(crate) fn live(&mut self, message: &[Bytes]) {
        let requested = self.driver.live(message);
        self.follow_up(requested);
    }

    /// Takes a live batch.
    #[cfg(feature = "nats")]
    pub(crate) fn batch(&mut self, seq: Option<u64>, payload: &[u8]) {
        let requested = self.driver.batch(seq, payload);
        self.follow_up(requested);
    }

    pub(crate) fn feed(&mut self, input: Input<'_>) {
        let requested = self.driver.feed(input);
        self.follow_up(requested);
    }

    /// Returns the next answer of the running request; waits forever while none runs. Cancel-safe.
    pub(crate) async fn next_answer(&mut self) -> Option<ReplayEvent> {
        next_answer(&mut self.replay).await
    }

    /// Asks the publisher for what follows the last batch, or for its history.
    #[cfg(feature = "nats")]
    pub(crate) fn recognise(&mut self) {
        self.replay = None;
        let requested = self.driver.recognise();
        self.follow_up(requested);
    }

    #[cfg(any(test, feature = "nats"))]
    pub(crate) fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Takes an answer and the answers already read behind it. Reads from the current request each
    /// time, since an answer may start a new one.
    pub(crate) fn replay_burst(&mut self, first: Option<ReplayEvent>) {
        self.replayed(first);
        for _ in 1..GO {
            let Some(answer) = self.replay.as_mut().and_then(ReplayRun::try_next) else {
                return;
            };
            self.replayed(Some(answer));
        }
    }

    fn replayed(&mut self, answer: Option<ReplayEvent>) {
        match answer {
            Some(ReplayEvent::Batch { seq, payload }) => self.feed(Input::ReplayBatch {
                seq,
                payload: &payload,
            }),
            Some(ReplayEvent::End) => {
                self.replay = None;
                self.feed(Input::ReplayEnd);
            }
            Some(ReplayEvent::Failed(error)) => {
                self.replay = None;
                self.feed(Input::ReplayFailed);
                if self.replay.is_some() {
                    // Not an error, since the replay continues: a long answer may have lost its
                    // end.
                    tracing::info!(worker = %self.worker, %error, "replay asked for again");
                } else if !self.driver.is_quarantined() {
                    self.driver.log_fault(error.to_string());
                }
            }
            None => {
                self.replay = None;
                self.feed(Input::ReplayFailed);
            }
        }
    }

    /// Starts the replay that the driver requests, and drops the running one of a quarantined
    /// stream.
    fn follow_up(&mut self, requested: Option<u64>) {
        if let Some(from) = requested {
            self.replay = (self.requester)(from);
        }
        if self.driver.is_quarantined() {
            self.replay = None;
        }
    }
}
