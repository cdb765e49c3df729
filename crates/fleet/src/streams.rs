//! The running event streams of one worker. [`find`] decides which streams it has, [`open`] opens
//! each kind.

mod find;
mod open;

use std::{sync::Arc, time::Duration};

use kv_blocks::{Moment, WorkerId};
use tokio::sync::watch;
use tracing::{error, warn};

pub(crate) use self::find::{StreamSettings, WantedStream};
use crate::{worker_record::FollowedStream, worker_table::WorkerTable};

/// Pause before a stream that could not be started, or that ended by itself, is started again.
const RETRY: Duration = Duration::from_secs(2);

/// Returns an endpoint without its password, for logs.
fn without_password(endpoint: &str) -> String {
    match endpoint
        .split_once("://")
        .and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1)))
    {
        Some((scheme, place)) => format!("{scheme}://***@{place}"),
        None => endpoint.to_owned(),
    }
}

/// The running streams of one worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerStreams {
    wanted: Vec<WantedStream>,
    model: Option<Arc<str>>,
    changes: Vec<watch::Receiver<u64>>,
    /// Whether a stream's task ended by itself.
    one_ended: bool,
    /// When wanted streams that do not run are tried again.
    retry_at: Option<Moment>,
    /// The last logged reasons why streams do not run.
    refusals: Vec<String>,
}

impl WorkerStreams {
    /// Makes the running streams match `wanted`: streams that stay are left alone, since they
    /// notice restarts themselves.
    pub(crate) async fn run(
        &mut self,
        board: &WorkerTable,
        settings: &StreamSettings,
        worker: (WorkerId, &Arc<str>),
        model: &Arc<str>,
        wanted: Vec<WantedStream>,
    ) {
        if self.wanted == wanted && self.model.as_ref() == Some(model) {
            return;
        }
        let id = worker.0;
        let followed = board
            .with(id, |entry| entry.followed_targets(|_| true))
            .unwrap_or_default();
        self.stop(board, id).await;
        // A new stream replays its history from the beginning: on top of the old stream's blocks,
        // blocks would count twice, and blocks removed in between would stay.
        board.forget_cache(followed);
        self.wanted = wanted;
        self.model = Some(Arc::clone(model));
        self.start_missing(board, settings, worker);
    }

    /// Starts the wanted streams that do not run. A stream that cannot start because another worker
    /// follows the same publisher is tried again later: that worker may release it.
    pub(crate) fn start_missing(
        &mut self,
        board: &WorkerTable,
        settings: &StreamSettings,
        worker: (WorkerId, &Arc<str>),
    ) {
        self.retry_at = None;
        let Some(model) = self.model.clone() else {
            return;
        };
        let runs = |streams: &[FollowedStream], wanted: &WantedStream| {
            streams
                .iter()
                .any(|stream| stream.ranks == wanted.ranks() && !stream.source.ended())
        };
        let mut started: Vec<FollowedStream> = Vec::new();
        let mut refusals = Vec::new();
        for stream in &self.wanted {
            let running = board.with(worker.0, |entry| runs(&entry.streams, stream)) == Some(true);
            if running || runs(&started, stream) {
                continue;
            }
            match open::open(board, settings, worker, &model, stream) {
                Ok(fresh) => {
                    self.changes.push(fresh.source.changes());
                    started.push(fresh);
                }
                Err(reason) => {
                    if !self.refusals.contains(&reason) {
                        warn!(worker = %worker.1, endpoint = %without_password(stream.endpoint()), reason, "event stream not followed");
                    }
                    refusals.push(reason);
                }
            }
        }
        if !refusals.is_empty() {
            self.retry_at = Some(board.clock.now() + RETRY);
        }
        self.refusals = refusals;
        board.change(worker.0, |entry| {
            entry
                .streams
                .retain(|old| started.iter().all(|new| new.ranks != old.ranks));
            entry.streams.append(&mut started);
            entry.streams.sort_by_key(|stream| stream.ranks.first());
        });
    }

    /// Schedules the next [`WorkerStreams::start_missing`].
    pub(crate) fn start_missing_at(&mut self, at: Moment) {
        self.retry_at = Some(at);
    }

    /// Returns when [`WorkerStreams::start_missing`] is due.
    pub(crate) fn retry_at(&self) -> Option<Moment> {
        self.retry_at
    }

    /// Discards the index content of streams whose task ended, since later events are lost. They
    /// are started again after a pause.
    pub(crate) fn forget_ended(&mut self, board: &WorkerTable, worker: (WorkerId, &Arc<str>)) {
        if !std::mem::take(&mut self.one_ended) {
            return;
        }
        let ended = board
            .with(worker.0, |entry| {
                entry.followed_targets(|stream| stream.source.ended())
            })
            .unwrap_or_default();
        for target in &ended {
            error!(worker = %worker.1, rank = target.rank.0, "event stream's task ended by itself: its part of the index is dropped");
        }
        board.forget_cache(ended);
        self.retry_at = Some(board.clock.now() + RETRY);
    }

    /// Stops all streams and waits for their end.
    pub(crate) async fn stop(&mut self, board: &WorkerTable, id: WorkerId) {
        *self = Self::default();
        for stream in board.take_streams(id) {
            stream.source.stop().await;
        }
        board.unclaim(id);
    }

    /// Returns whether any stream runs.
    pub(crate) fn any(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Waits until a stream's state or its part of the index changes; for ever if there is none.
    pub(crate) async fn changed(&mut self) {
        if self.changes.is_empty() {
            return std::future::pending().await;
        }
        let changes = self
            .changes
            .iter_mut()
            .map(|change| Box::pin(change.changed()));
        let (result, at, _) = futures_util::future::select_all(changes).await;
        if result.is_err() {
            self.changes.swap_remove(at);
            self.one_ended = true;
        }
    }
}

#[cfg(test)]
mod tests;
