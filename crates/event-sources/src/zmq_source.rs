//! A stream over ZMQ: what it needs to be followed, and the handle of the one that is.

use std::{sync::Arc, time::Duration};

use kv_blocks::{Moment, Target};
use kv_events::StreamState;
use kv_index::KvIndex;
use net::Clock;
use tokio::{
    sync::{Notify, oneshot, watch},
    task::JoinHandle,
};
use zmtp::Endpoint;

use crate::{SourceCounters, StreamReport, follower::Follower, status::Status};

/// One stream to follow.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// Whose cache it speaks of.
    pub target: Target,
    /// The worker's name.
    pub worker: Arc<str>,
    /// The model its blocks belong to; registered with the index before anything is applied.
    pub model: Arc<str>,
    /// The publisher's socket, with the worker's host in it.
    pub endpoint: Endpoint,
    /// The replay socket, with the worker's host in it.
    pub replay_endpoint: Option<Endpoint>,
    /// Only topics that start with this.
    pub topic: String,
    /// Bind `endpoint` and let the publisher connect, in place of connecting to it.
    pub bind: bool,
    /// Limits and times.
    pub settings: SourceSettings,
}

/// Limits and times of a stream.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// Longest accepted message, bytes.
    pub max_message: usize,
    /// Live batches kept while history is fetched.
    pub queue_batches: usize,
    /// A connected stream without a message is called stale after this.
    pub stale_after: Duration,
    /// Longest wait for a replay's connection and for its first message; then it has failed. Once the answer has begun,
    /// each next message may take as long, but 2 s at most.
    pub replay_timeout: Duration,
}

impl Default for SourceSettings {
    fn default() -> Self {
        Self {
            max_message: 64 << 20,
            queue_batches: 65_536,
            stale_after: Duration::from_secs(60),
            replay_timeout: Duration::from_secs(5),
        }
    }
}

/// Said of a stream whose task ended by itself.
const ENDED: &str = "the stream's task ended with a panic: see the log, the stream is started again";

/// Follows one publisher's ZMQ sockets.
#[derive(Debug)]
pub struct ZmqSource;

impl ZmqSource {
    /// Starts following, in a task of the current runtime; reconnects until stopped.
    pub fn spawn(spec: SourceSpec, index: Arc<KvIndex>, clock: Clock) -> SourceHandle {
        let (status, seen) = watch::channel(Status::default());
        let (version, versions) = watch::channel(0);
        let (stop, stopped) = oneshot::channel();
        let resync = Arc::new(Notify::new());
        let asked = Arc::clone(&resync);
        let follower = Follower::new(spec.clone(), index, clock, status, version);
        let task = tokio::spawn(follower.run(stopped, asked));
        SourceHandle { spec, clock, seen, versions, resync, stop: Some(stop), task }
    }
}

/// A running source. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct SourceHandle {
    spec: SourceSpec,
    clock: Clock,
    seen: watch::Receiver<Status>,
    versions: watch::Receiver<u64>,
    resync: Arc<Notify>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl SourceHandle {
    /// The stream as it stands.
    pub fn report(&self) -> StreamReport {
        let status = self.seen.borrow();
        StreamReport {
            worker: Arc::clone(&self.spec.worker),
            dp_rank: self.spec.target.rank.0,
            source: "zmq",
            endpoint: self.spec.endpoint.to_string(),
            replay_endpoint: self.spec.replay_endpoint.as_ref().map(Endpoint::to_string),
            state: self.state_of(&status).as_str(),
            epoch: status.epoch,
            last_seq: status.last_seq,
            lag_events: status.lag_events,
            lag_ms: status.lag_ms,
            last_event_at: status.last_event_at.map(|at| net::rfc3339(self.clock.wall_at(at))),
            counts: status.totals.counts(),
            last_error: if self.ended() { Some(ENDED.to_owned()) } else { status.last_error.clone() },
        }
    }

    /// Fetches the whole history again and rebuilds from it what the target holds. Where the publisher does not keep it
    /// back to its first batch, what it keeps is gone over once more and the rest of what is known stays; so does all of it
    /// without a replay endpoint. Returns at once. One that is under way is enough, and one that is asked for while
    /// something else is fetched, or while the publisher cannot be reached, comes next; it stays wanted until it was had.
    pub fn resync(&self) {
        self.resync.notify_one();
    }

    /// Where the stream stands.
    pub fn state(&self) -> StreamState {
        self.state_of(&self.seen.borrow())
    }

    /// What a task that ended last said of itself is no longer so.
    fn state_of(&self, status: &Status) -> StreamState {
        if self.ended() { StreamState::Connecting } else { status.state }
    }

    /// Nobody follows the stream any more, though nobody stopped it: the task ended with a panic. What it put into the
    /// index is stale from then on.
    pub fn ended(&self) -> bool {
        // The task owns the sender, and a panic drops it before anyone is told of the task's end.
        self.seen.has_changed().is_err()
    }

    /// When the last batch came.
    pub fn last_event_at(&self) -> Option<Moment> {
        self.seen.borrow().last_event_at
    }

    /// Totals for metrics.
    pub fn counters(&self) -> SourceCounters {
        self.seen.borrow().totals.counters()
    }

    /// Tokens per block, as the publisher's device stores say.
    pub fn announced_block_size(&self) -> Option<u32> {
        self.seen.borrow().block_size
    }

    /// The data-parallel rank the publisher last named.
    pub fn announced_rank(&self) -> Option<u32> {
        self.seen.borrow().rank
    }

    /// A number that grows whenever the stream's state, its counts or its part of the index changed. Closed when nobody
    /// follows the stream any more.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.versions.clone()
    }

    /// Stops and waits for the end; what the index knows stays.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            // The task may have ended before, with its receiver.
            let _ = stop.send(());
        }
        let _ = (&mut self.task).await;
    }
}

impl Drop for SourceHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use kv_blocks::{DpRank, WorkerId};
    use kv_index::IndexSettings;
    use zmtp::{Pub, PubSettings};

    use super::*;

    #[tokio::test]
    async fn a_task_that_ended_is_not_reported_as_live_for_ever() {
        let any = "tcp://127.0.0.1:0".parse().expect("an endpoint");
        let (_publisher, endpoint) = Pub::bind(&any, PubSettings::default()).await.expect("a free port");
        let spec = SourceSpec {
            target: Target { worker: WorkerId(0), rank: DpRank(0) },
            worker: "w".into(),
            model: "m".into(),
            endpoint,
            replay_endpoint: None,
            topic: String::new(),
            bind: false,
            settings: SourceSettings::default(),
        };
        let source = ZmqSource::spawn(spec, Arc::new(KvIndex::new(IndexSettings::default())), Clock::system());
        let mut changes = source.changes();
        while source.state() != StreamState::Live {
            changes.changed().await.expect("the task runs");
        }
        assert!(!source.ended());
        // What a panic leaves behind: a task that is over and its channels with it.
        source.task.abort();
        while changes.changed().await.is_ok() {}
        assert!(source.ended());
        assert_eq!(source.state(), StreamState::Connecting);
        let report = source.report();
        assert_eq!((report.state, report.last_error.as_deref()), ("connecting", Some(ENDED)));
        source.stop().await;
    }
}
