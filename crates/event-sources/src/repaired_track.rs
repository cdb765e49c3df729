//! A track and the replay that fills its holes, whatever socket either comes over.

use std::sync::Arc;

use bytes::Bytes;
use kv_events::Input;

use crate::{
    follower::GO,
    replay::{Answer, ReplayRun, next_answer},
    track::Track,
};

/// Asks for everything from a number on; `None`: there is nobody to ask.
pub(crate) type Ask = Box<dyn Fn(u64) -> Option<ReplayRun> + Send + Sync>;

/// One stream without its live socket. What its track wants is asked for, one request at a time, and nothing of an answer
/// is kept once the stream is no longer believed.
pub(crate) struct RepairedTrack {
    pub(crate) track: Track,
    /// For the log.
    worker: Arc<str>,
    ask: Ask,
    replay: Option<ReplayRun>,
}

impl RepairedTrack {
    pub(crate) fn new(track: Track, worker: Arc<str>, ask: Ask) -> Self {
        Self {
            track,
            worker,
            ask,
            replay: None,
        }
    }

    /// From now on these are asked; what runs is given up.
    #[cfg(feature = "nats")]
    pub(crate) fn ask_by(&mut self, ask: Ask) {
        self.ask = ask;
        self.replay = None;
    }

    pub(crate) fn connected(&mut self) {
        let wanted = self.track.connected();
        self.follow_up(wanted);
    }

    pub(crate) fn disconnected(&mut self) {
        self.replay = None;
        self.track.disconnected();
    }

    /// A message of the live socket, as frames.
    pub(crate) fn live(&mut self, message: &[Bytes]) {
        let wanted = self.track.live(message);
        self.follow_up(wanted);
    }

    /// A live batch.
    #[cfg(feature = "nats")]
    pub(crate) fn batch(&mut self, seq: Option<u64>, payload: &[u8]) {
        let wanted = self.track.batch(seq, payload);
        self.follow_up(wanted);
    }

    pub(crate) fn feed(&mut self, input: Input<'_>) {
        let wanted = self.track.feed(input);
        self.follow_up(wanted);
    }

    /// The next answer of the request that runs; waits for ever while none does. May be cancelled without losing anything.
    pub(crate) async fn next_answer(&mut self) -> Option<Answer> {
        next_answer(&mut self.replay).await
    }

    #[cfg(test)]
    pub(crate) fn is_asking(&self) -> bool {
        self.replay.is_some()
    }

    /// Takes an answer and what was read behind it; each time of the request that runs then, since an answer may be the
    /// reason to ask anew.
    pub(crate) fn replay_burst(&mut self, first: Option<Answer>) {
        self.replayed(first);
        for _ in 1..GO {
            let Some(answer) = self.replay.as_mut().and_then(ReplayRun::read_already) else {
                return;
            };
            self.replayed(Some(answer));
        }
    }

    fn replayed(&mut self, answer: Option<Answer>) {
        match answer {
            Some(Answer::Batch { seq, payload }) => self.feed(Input::ReplayBatch {
                seq,
                payload: &payload,
            }),
            Some(Answer::End) => {
                self.replay = None;
                self.feed(Input::ReplayEnd);
            }
            Some(Answer::Failed(error)) => {
                self.replay = None;
                self.feed(Input::ReplayFailed);
                if self.replay.is_some() {
                    // Not a fault, it goes on: a long answer may have lost its end.
                    tracing::info!(worker = %self.worker, %error, "replay asked for again");
                } else if !self.track.is_quarantined() {
                    self.track.fault(error.to_string());
                }
            }
            None => {
                self.replay = None;
                self.feed(Input::ReplayFailed);
            }
        }
    }

    /// Fetches what the track wants, and drops everything of a stream that it no longer believes.
    fn follow_up(&mut self, wanted: Option<u64>) {
        if let Some(from) = wanted {
            self.replay = (self.ask)(from);
        }
        if self.track.is_quarantined() {
            self.replay = None;
        }
    }
}
