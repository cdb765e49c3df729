//! The running event streams of one worker. [`find`] decides which streams it has, [`open`] opens
//! each kind.

mod find;
mod followed;
mod open;
mod peers;
mod settings;
mod stream_spec;

use std::sync::Arc;

use kv_blocks::WorkerId;
use tokio::sync::watch;
use tracing::{error, warn};

use self::open::StreamOwner;
pub(crate) use self::{
    find::StreamSearch,
    followed::{FollowedStream, RankSelection},
    settings::StreamSettings,
    stream_spec::StreamSpec,
};
use crate::{worker_machine::StreamCoverage, worker_table::WorkerTable};

/// Returns an endpoint without its password, for logs.
fn without_password(endpoint: &str) -> String {
    match endpoint
        .split_once("://")
        .and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1)))
    {
        Some((scheme, endpoint)) => format!("{scheme}://***@{endpoint}"),
        None => endpoint.to_owned(),
    }
}

/// The running streams of one worker.
#[derive(Debug)]
pub(crate) struct WorkerStreams {
    worker_table: Arc<WorkerTable>,
    id: WorkerId,
    name: Arc<str>,
    specs: Vec<StreamSpec>,
    model: Option<Arc<str>>,
    changes: Vec<watch::Receiver<u64>>,
    /// Whether a stream's task ended by itself.
    one_ended: bool,
    /// The last logged reasons why streams do not run.
    refusals: Vec<String>,
}

impl WorkerStreams {
    /// Creates the streams of a worker, without specs yet.
    pub(crate) fn new(worker_table: Arc<WorkerTable>, id: WorkerId, name: Arc<str>) -> Self {
        Self {
            worker_table,
            id,
            name,
            specs: Vec::new(),
            model: None,
            changes: Vec::new(),
            one_ended: false,
            refusals: Vec::new(),
        }
    }

    /// Makes the running streams match `specs`: streams that stay are left alone, since they
    /// notice restarts themselves. `None`: nothing was to be changed.
    pub(crate) async fn run(
        &mut self,
        settings: &StreamSettings,
        model: &Arc<str>,
        specs: Vec<StreamSpec>,
    ) -> Option<StreamCoverage> {
        if self.specs == specs && self.model.as_ref() == Some(model) {
            return None;
        }
        // A new stream replays its history from the beginning: on top of the old stream's blocks,
        // blocks would count twice, and blocks removed in between would stay.
        self.stop_and_forget().await;
        self.specs = specs;
        self.model = Some(Arc::clone(model));
        Some(self.start_missing(settings))
    }

    /// Starts the specified streams that do not run. A stream that cannot start because another worker
    /// follows the same publisher is to be tried again later: that worker may release it.
    pub(crate) fn start_missing(&mut self, settings: &StreamSettings) -> StreamCoverage {
        let Some(model) = self.model.clone() else {
            return StreamCoverage::Complete;
        };
        let owner = StreamOwner {
            worker_table: &self.worker_table,
            settings,
            id: self.id,
            name: &self.name,
            model: &model,
        };
        let mut started: Vec<FollowedStream> = Vec::new();
        let mut refusals = Vec::new();
        for stream in &self.specs {
            if self.runs(stream) || is_running(&started, stream) {
                continue;
            }
            match owner.open(stream) {
                Ok(fresh) => {
                    self.changes.push(fresh.source.changes());
                    started.push(fresh);
                }
                Err(reason) => {
                    if !self.refusals.contains(&reason) {
                        warn!(worker = %self.name, endpoint = %without_password(stream.endpoint()), reason, "event stream not followed");
                    }
                    refusals.push(reason);
                }
            }
        }
        self.refusals = refusals;
        self.worker_table.change(self.id, |entry| {
            entry
                .streams
                .retain(|old| started.iter().all(|new| new.ranks != old.ranks));
            entry.streams.append(&mut started);
            entry.streams.sort_by_key(|stream| stream.ranks.first());
        });
        if self.refusals.is_empty() {
            StreamCoverage::Complete
        } else {
            StreamCoverage::Incomplete
        }
    }

    fn runs(&self, spec: &StreamSpec) -> bool {
        self.worker_table
            .with(self.id, |entry| is_running(&entry.streams, spec))
            == Some(true)
    }

    /// Discards the index content of streams whose task ended, since later events are lost. Returns
    /// whether there were some.
    pub(crate) fn forget_ended(&mut self) -> bool {
        if !std::mem::take(&mut self.one_ended) {
            return false;
        }
        let ended = self
            .worker_table
            .with(self.id, |entry| {
                entry.followed_targets(|stream| stream.source.ended())
            })
            .unwrap_or_default();
        for target in &ended {
            error!(worker = %self.name, rank = target.rank.0, "event stream's task ended by itself: its part of the index is dropped");
        }
        self.worker_table.forget_cache(ended);
        true
    }

    /// Stops all streams and waits for their end.
    pub(crate) async fn stop(&mut self) {
        self.specs.clear();
        self.model = None;
        self.changes.clear();
        self.one_ended = false;
        self.refusals.clear();
        for stream in self.worker_table.take_streams(self.id) {
            stream.source.stop().await;
        }
        self.worker_table.unclaim(self.id);
    }

    /// Stops all streams and discards their index content: it is invalid for the streams that
    /// follow.
    pub(crate) async fn stop_and_forget(&mut self) {
        let followed = self
            .worker_table
            .with(self.id, |entry| entry.filled_targets())
            .unwrap_or_default();
        self.stop().await;
        self.worker_table.forget_cache(followed);
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

fn is_running(streams: &[FollowedStream], spec: &StreamSpec) -> bool {
    streams
        .iter()
        .any(|stream| stream.ranks == spec.ranks() && !stream.source.ended())
}

#[cfg(test)]
mod tests;
