//! Handle of a running source of any kind.

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

use crate::{SourceCounters, StreamReport, report::reduce_error, status::StreamStatus};

/// Error text of a stream whose task ended unexpectedly.
const ENDED: &str =
    "the stream's task ended with a panic: see the log, the stream is started again";

/// The constant properties of a source.
#[derive(Clone, Debug)]
pub(crate) struct SourceInfo {
    /// Kind of source in reports.
    pub(crate) kind: &'static str,
    pub(crate) worker: Arc<str>,
    pub(crate) rank: u32,
    pub(crate) endpoint: String,
    pub(crate) replay_endpoint: Option<String>,
}

/// The streams of a shared socket, by target, each with its worker's name.
pub(crate) type SharedStreams = Arc<Mutex<BTreeMap<Target, (Arc<str>, StreamStatus)>>>;

/// Publishes the status of a source's task.
#[derive(Debug, Default)]
pub(crate) struct StatusSender {
    status: watch::Sender<StreamStatus>,
    versions: watch::Sender<u64>,
}

impl StatusSender {
    /// Publishes the status if it changed.
    pub(crate) fn publish(&self, fresh: StreamStatus) {
        if *self.status.borrow() != fresh {
            self.status.send_replace(fresh);
            self.touch();
        }
    }

    /// Reports that a part of the source changed.
    pub(crate) fn touch(&self) {
        self.versions.send_modify(|version| *version += 1);
    }
}

/// Commands for a source's task.
#[derive(Debug)]
pub(crate) struct SourceControl {
    /// Ends the task.
    pub(crate) stop: oneshot::Receiver<()>,
    /// Requests a resync.
    pub(crate) resync: Arc<Notify>,
}

/// A running source. Dropping it stops the source without waiting.
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
    /// Starts the future that `follow` makes in a task of the current runtime.
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
        let status_sender = StatusSender {
            status,
            versions: sender,
        };
        let following = contain(
            "event_stream",
            follow(
                status_sender,
                SourceControl {
                    stop: stopped,
                    resync: Arc::clone(&resync),
                },
            ),
        );
        // The owner sees the end of the task and starts another source, so the state of this one is
        // cleared first.
        let task = runtime::spawn(async {
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

    /// Adds the table of a shared socket's streams, one per topic and rank.
    pub(crate) fn with_shared_streams(mut self, parts: SharedStreams) -> Self {
        self.parts = Some(parts);
        self
    }

    /// Returns the streams that share the socket; empty for every other source.
    pub(crate) fn shared_streams(&self) -> SharedStreams {
        self.parts.clone().unwrap_or_default()
    }

    /// Returns the stream's report; where several publishers share the socket, the sum of their
    /// streams.
    pub fn report(&self) -> StreamReport {
        self.report_of(&self.about, &self.status())
    }

    /// Returns the report as a caller may see it who chose the address: an error is told only where
    /// it is about an event of a publisher that has sent others, and is a word otherwise.
    pub fn reduced_report(&self) -> StreamReport {
        let status = self.status();
        let mut report = self.report_of(&self.about, &status);
        if self.ended() || !status.may_tell_error() {
            reduce_error(&mut report);
        }
        report
    }

    /// Returns the stream's status, or the sum over all streams of the socket.
    fn status(&self) -> StreamStatus {
        let mut status = self.seen.borrow().clone();
        if let Some(parts) = &self.parts {
            for (_, part) in parts.lock().values() {
                status.add(part);
            }
        }
        status
    }

    /// Returns the report of every stream: one row, except on a shared socket, which has one for
    /// each stream seen so far.
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
            source: status.source.unwrap_or(about.kind).into(),
            endpoint: about.endpoint.clone(),
            replay_endpoint: about.replay_endpoint.clone(),
            state: self.state_of(status).as_str().into(),
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
                status.last_error.as_ref().map(|fault| fault.text.clone())
            },
        }
    }

    /// Fetches the whole history again and rebuilds the target's blocks from it. If the publisher's
    /// history does not begin with its first batch, the available part is applied once more and all
    /// other known blocks stay; without a replay endpoint all known blocks stay. Returns at once.
    /// Requests during a running resync are merged with it. A request during another fetch, or
    /// while the publisher is unreachable, is carried out next and stays pending until it succeeds.
    ///
    /// Sources over HTTP have no history: a stream reconnects, a list is polled as before.
    pub fn resync(&self) {
        self.resync.notify_one();
    }

    /// Returns the state of the stream.
    pub fn state(&self) -> StreamState {
        self.state_of(&self.seen.borrow())
    }

    /// Returns the status's state, or `Connecting` if the task has ended: its last status is no
    /// longer true.
    fn state_of(&self, status: &StreamStatus) -> StreamState {
        if self.ended() {
            StreamState::Connecting
        } else {
            status.state
        }
    }

    /// Returns whether the task ended with a panic, without a stop. Its entries in the index are
    /// stale from then on.
    pub fn ended(&self) -> bool {
        // The task owns the sender, and a panic drops it before the task's end is visible.
        self.seen.has_changed().is_err()
    }

    /// Returns the arrival time of the last batch.
    pub fn last_event_at(&self) -> Option<Moment> {
        self.status().last_event_at
    }

    /// Returns the message rate of the last minute, per second. Only streams over HTTP measure it;
    /// others return 0.
    pub fn events_per_second(&self) -> f64 {
        self.seen.borrow().rate.per_second(self.clock.now())
    }

    /// Returns the totals for metrics.
    pub fn counters(&self) -> SourceCounters {
        self.status().counters()
    }

    /// Returns the tokens per block that the publisher's device stores name.
    pub fn announced_block_size(&self) -> Option<u32> {
        self.status().block_size
    }

    /// Returns how many stores were rejected because their block size is not
    /// [`EventDefaults::block_size`](crate::EventDefaults::block_size).
    pub fn other_block_size(&self) -> u64 {
        self.status().other_block_size
    }

    /// Returns the data-parallel rank that the publisher named last.
    pub fn announced_rank(&self) -> Option<u32> {
        self.status().rank
    }

    /// Returns a counter that grows with every change of the stream's state, its counts or its part
    /// of the index. The channel closes when the task has ended.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.versions.clone()
    }

    /// Stops the source and waits for its end; its entries stay in the index.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            // The task may have ended already, and its receiver with it.
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
    async fn a_source_whose_task_ended_is_not_reported_as_live() {
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
        // The state after a panic: the task has ended and its channels are closed.
        source.task.abort();
        while changes.changed().await.is_ok() {}
        assert!(source.ended());
        assert_eq!(source.state(), StreamState::Connecting);
        let report = source.report();
        assert_eq!(
            (&*report.state, report.last_error.as_deref()),
            ("connecting", Some(ENDED))
        );
        source.stop().await;
    }
}
