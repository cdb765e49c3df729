//! What its owner holds of a running source, whatever kind it is.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use kv_blocks::{Moment, Target};
use kv_events::StreamState;
use net::Clock;
use parking_lot::Mutex;
use supervision::contain;
use tokio::{
    sync::{Notify, oneshot, watch},
    task::JoinHandle,
};

use crate::{SourceCounters, StreamReport, status::StreamStatus};

/// Said of a stream whose task ended by itself.
const ENDED: &str =
    "the stream's task ended with a panic: see the log, the stream is started again";

/// What of a source does not change while it runs.
#[derive(Clone, Debug)]
pub(crate) struct SourceInfo {
    /// Kind of source, as reports name it.
    pub(crate) kind: &'static str,
    pub(crate) worker: Arc<str>,
    pub(crate) rank: u32,
    pub(crate) endpoint: String,
    pub(crate) replay_endpoint: Option<String>,
}

/// The streams that came over one socket, by target, each with its worker's name.
pub(crate) type SharedStreams = Arc<Mutex<BTreeMap<Target, (Arc<str>, StreamStatus)>>>;

/// Where a source's task says how it stands.
#[derive(Debug, Default)]
pub(crate) struct StatusSender {
    status: watch::Sender<StreamStatus>,
    versions: watch::Sender<u64>,
}

impl StatusSender {
    /// Publishes, if it is news.
    pub(crate) fn publish(&self, fresh: StreamStatus) {
        if *self.status.borrow() != fresh {
            self.status.send_replace(fresh);
            self.touch();
        }
    }

    /// Says that a part of the source changed.
    pub(crate) fn touch(&self) {
        self.versions.send_modify(|version| *version += 1);
    }
}

/// What a source's task is told.
#[derive(Debug)]
pub(crate) struct SourceControl {
    /// The task is to end.
    pub(crate) stop: oneshot::Receiver<()>,
    /// Everything is to be fetched anew.
    pub(crate) resync: Arc<Notify>,
}

/// A running source. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct SourceHandle {
    about: SourceInfo,
    clock: Clock,
    seen: watch::Receiver<StreamStatus>,
    versions: watch::Receiver<u64>,
    parts: Option<SharedStreams>,
    resync: Arc<Notify>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl SourceHandle {
    /// Starts what `follow` makes, in a task of the current runtime.
    pub(crate) fn start<F>(
        about: SourceInfo,
        clock: Clock,
        follow: impl FnOnce(StatusSender, SourceControl) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (status, seen) = watch::channel(StreamStatus::default());
        let (sender, versions) = watch::channel(0);
        let (stop, stopped) = oneshot::channel();
        let resync = Arc::new(Notify::new());
        let outlet = StatusSender {
            status,
            versions: sender,
        };
        let following = contain(
            "event_stream",
            follow(
                outlet,
                SourceControl {
                    stop: stopped,
                    resync: Arc::clone(&resync),
                },
            ),
        );
        // Whoever follows the source sees its end, and starts another: what this one said is forgotten before.
        let task = tokio::spawn(async {
            let _ended = following.await;
        });
        Self {
            about,
            clock,
            seen,
            versions,
            parts: None,
            resync,
            stop: Some(stop),
            task,
        }
    }

    /// The source has a stream per topic and rank, to be found here.
    pub(crate) fn with_shared_streams(mut self, parts: SharedStreams) -> Self {
        self.parts = Some(parts);
        self
    }

    /// Where the streams that share the socket are found; empty for every other source.
    pub(crate) fn shared_streams(&self) -> SharedStreams {
        self.parts.clone().unwrap_or_default()
    }

    /// The stream as it stands. Where several publishers share the socket: all of it together.
    pub fn report(&self) -> StreamReport {
        self.report_of(&self.about, &self.status())
    }

    /// The stream's status, or the sum of all that share the socket.
    fn status(&self) -> StreamStatus {
        let mut status = self.seen.borrow().clone();
        if let Some(parts) = &self.parts {
            for (_, part) in parts.lock().values() {
                status.add(part);
            }
        }
        status
    }

    /// Every stream of the source as it stands: one, except where several publishers share the socket; of those the ones
    /// that were heard of.
    pub fn reports(&self) -> Vec<StreamReport> {
        let Some(parts) = &self.parts else {
            return vec![self.report()];
        };
        let of = |(target, (worker, status)): (&Target, &(Arc<str>, StreamStatus))| {
            let about = SourceInfo {
                worker: Arc::clone(worker),
                rank: target.rank.0,
                ..self.about.clone()
            };
            self.report_of(&about, status)
        };
        parts.lock().iter().map(of).collect()
    }

    fn report_of(&self, about: &SourceInfo, status: &StreamStatus) -> StreamReport {
        StreamReport {
            worker: Arc::clone(&about.worker),
            dp_rank: about.rank,
            source: about.kind,
            endpoint: about.endpoint.clone(),
            replay_endpoint: about.replay_endpoint.clone(),
            state: self.state_of(status).as_str(),
            epoch: status.epoch,
            last_seq: status.last_seq,
            lag_events: status.lag_events,
            lag_ms: status.lag_ms,
            last_event_at: status
                .last_event_at
                .map(|at| net::rfc3339(self.clock.wall_at(at))),
            counts: status.totals.counts(),
            last_error: if self.ended() {
                Some(ENDED.to_owned())
            } else {
                status.last_error.clone()
            },
        }
    }

    /// Fetches the whole history again and rebuilds from it what the target holds. Where the publisher does not keep it
    /// back to its first batch, what it keeps is gone over once more and the rest of what is known stays; so does all of it
    /// without a replay endpoint. Returns at once. One that is under way is enough, and one that is asked for while
    /// something else is fetched, or while the publisher cannot be reached, comes next; it stays wanted until it was had.
    ///
    /// Sources over HTTP have no history to ask for: a stream is connected to anew, a list is polled as before.
    pub fn resync(&self) {
        self.resync.notify_one();
    }

    /// Where the stream stands.
    pub fn state(&self) -> StreamState {
        self.state_of(&self.seen.borrow())
    }

    /// What a task that ended last said of itself is no longer so.
    fn state_of(&self, status: &StreamStatus) -> StreamState {
        if self.ended() {
            StreamState::Connecting
        } else {
            status.state
        }
    }

    /// Nobody follows the stream any more, though nobody stopped it: the task ended with a panic. What it put into the
    /// index is stale from then on.
    pub fn ended(&self) -> bool {
        // The task owns the sender, and a panic drops it before anyone is told of the task's end.
        self.seen.has_changed().is_err()
    }

    /// When the last batch came.
    pub fn last_event_at(&self) -> Option<Moment> {
        self.status().last_event_at
    }

    /// Messages of the last minute, per second. Sources that are no streams over HTTP do not count by time: 0.
    pub fn events_per_second(&self) -> f64 {
        self.seen.borrow().rate.per_second(self.clock.now())
    }

    /// Totals for metrics.
    pub fn counters(&self) -> SourceCounters {
        self.status().counters()
    }

    /// Tokens per block, as the publisher's device stores say.
    pub fn announced_block_size(&self) -> Option<u32> {
        self.status().block_size
    }

    /// Stores that were not taken because their blocks are not of the size in
    /// [`EventDefaults::block_size`](crate::EventDefaults::block_size).
    pub fn other_block_size(&self) -> u64 {
        self.status().other_block_size
    }

    /// The data-parallel rank the publisher last named.
    pub fn announced_rank(&self) -> Option<u32> {
        self.status().rank
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
    use kv_index::{IndexSettings, KvIndex};
    use zmtp::{Pub, PubSettings};

    use super::*;
    use crate::{SourceSpec, ZmqSource};

    #[tokio::test]
    async fn a_task_that_ended_is_not_reported_as_live_for_ever() {
        let any = "tcp://127.0.0.1:0".parse().expect("an endpoint");
        let (_publisher, endpoint) = Pub::bind(&any, PubSettings::default())
            .await
            .expect("a free port");
        let spec = SourceSpec::new(
            Target {
                worker: WorkerId(0),
                rank: DpRank(0),
            },
            "w",
            "m",
            endpoint,
        );
        let source = ZmqSource::spawn(
            spec,
            Arc::new(KvIndex::new(IndexSettings::default())),
            Clock::system(),
        );
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
        assert_eq!(
            (report.state, report.last_error.as_deref()),
            ("connecting", Some(ENDED))
        );
        source.stop().await;
    }
}
