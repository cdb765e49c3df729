//! The snapshots of the block index and of what the router has learned, which outlive the process:
//! loaded at the start, saved at each interval and at the end.
//!
//! A target number of the index means a worker only within one process. So the file names the
//! workers, and a worker with the same name and URL gets the same number again (`fleet`). Its blocks
//! are credited once its event stream has proven that it continues where they end (`kv-events`).
//!
//! **Invariant**: no fault of a snapshot stops the start, a request or an event.

mod file;
mod telemetry;

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use config::IndexSnapshotSection;
use fleet::{Fleet, NumberedWorker};
use kv_blocks::WorkerId;
use kv_index::KvIndex;
use net::Clock;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use routing::Router;
use supervision::Task;
use tokio::{sync::watch, task::JoinHandle};

use self::file::RejectedSnapshot;
use self::{
    file::SnapshotHead,
    telemetry::{LastSnapshot, SnapshotCollector, SnapshotTelemetry},
};

/// Time after the start in which a worker of the snapshot may appear, for example by discovery.
const LONGEST_ABSENCE: Duration = Duration::from_secs(60);
/// Longest wait at the start for streams that prove their part of the snapshot.
const LONGEST_PROOF: Duration = Duration::from_millis(500);
/// Interval of the looks for them.
const PROOF_CHECK: Duration = Duration::from_millis(5);

/// What outlives the process.
#[derive(Clone, Debug)]
pub(crate) struct LastingState {
    pub(crate) index: Arc<KvIndex>,
    pub(crate) router: Arc<Router>,
    pub(crate) clock: Clock,
}

/// The snapshots of one router.
#[derive(Debug)]
pub(crate) struct IndexSnapshots {
    path: PathBuf,
    interval: Duration,
    state: LastingState,
    telemetry: Arc<SnapshotTelemetry>,
    /// Whether the last save failed: only changes are logged.
    failing: AtomicBool,
    /// Held by a save: the last one waits for the one before.
    saving: Mutex<()>,
}

/// Loads the file, if one is configured and there, into the empty index. Returns the workers in it.
pub(crate) async fn load(snapshots: Option<&Arc<IndexSnapshots>>) -> Vec<NumberedWorker> {
    match snapshots {
        Some(snapshots) => snapshots.load().await,
        None => Vec::new(),
    }
}

/// Starts the task that saves at each interval until `stop`.
pub(crate) fn spawn(
    snapshots: Option<&Arc<IndexSnapshots>>,
    fleet: &Arc<Fleet>,
    stop: &watch::Receiver<bool>,
) -> Option<JoinHandle<()>> {
    let snapshots = Arc::clone(snapshots?);
    Some(runtime::spawn(
        snapshots.run(Arc::clone(fleet), stop.clone()),
    ))
}

impl IndexSnapshots {
    /// Registers the metrics; `None` if no file is configured.
    pub(crate) fn new(
        section: &IndexSnapshotSection,
        state: &LastingState,
        registry: &mut Registry,
    ) -> Option<Arc<Self>> {
        let telemetry = Arc::new(SnapshotTelemetry::new(state.clock, registry));
        registry.register_collector(Box::new(SnapshotCollector(Arc::clone(&telemetry))));
        Some(Arc::new(Self {
            path: section.path.clone()?,
            interval: section.interval,
            state: state.clone(),
            telemetry,
            failing: AtomicBool::new(false),
            saving: Mutex::new(()),
        }))
    }

    async fn load(self: &Arc<Self>) -> Vec<NumberedWorker> {
        let this = Arc::clone(self);
        let loaded = runtime::spawn_blocking(move || this.load_now()).await;
        loaded.unwrap_or_else(|error| {
            tracing::error!(%error, "the load of the index's snapshot ended with a panic: the index starts empty");
            Vec::new()
        })
    }

    fn load_now(&self) -> Vec<NumberedWorker> {
        let clock = self.state.clock;
        let started = clock.now();
        let (head, summary) = match file::load(&self.path, &self.state.index) {
            Ok(Some(loaded)) => loaded,
            Ok(None) => {
                tracing::info!(file = %self.path.display(), "no snapshot of the index yet: it starts empty");
                return Vec::new();
            }
            Err(error) => {
                self.telemetry.record_rejection(error.reason());
                tracing::warn!(file = %self.path.display(), reason = error.reason(), %error,
                    "snapshot of the index rejected: it starts empty");
                return Vec::new();
            }
        };
        let age = clock.unix_ms().saturating_sub(head.saved_at_ms);
        let load_s = clock.now().since(started).as_secs_f64();
        self.telemetry.record_load(LastSnapshot {
            saved_at_ms: head.saved_at_ms,
            bytes: summary.bytes,
            save_s: 0.0,
        });
        tracing::info!(file = %self.path.display(), targets = summary.targets, blocks = summary.blocks,
            memberships = summary.memberships, shed = summary.shed, age_s = age / 1000, load_s,
            "snapshot of the index loaded: each worker's blocks count once its event stream continues them");
        self.state.take_over(head)
    }

    /// Saves at each interval until stopped.
    async fn run(self: Arc<Self>, fleet: Arc<Fleet>, mut stop: watch::Receiver<bool>) {
        let mut task = Task::new("index_snapshot");
        let saving = async {
            // An attempt has no state of its own: it begins with another pause.
            while task.attempt(self.keep_saving(&fleet)).await.is_none() {}
        };
        tokio::select! {
            () = saving => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    async fn keep_saving(self: &Arc<Self>, fleet: &Fleet) {
        loop {
            tokio::time::sleep(self.interval).await;
            self.save(fleet.numbered_workers()).await;
        }
    }

    /// Saves the index; `workers`: those whose numbers it uses, as known before.
    pub(crate) async fn save(self: &Arc<Self>, workers: Vec<NumberedWorker>) {
        let this = Arc::clone(self);
        if let Err(error) = runtime::spawn_blocking(move || this.save_now(&workers)).await {
            self.record_failure(&error);
        }
    }

    fn save_now(&self, workers: &[NumberedWorker]) {
        let _one_at_a_time = self.saving.lock();
        let clock = self.state.clock;
        let started = clock.now();
        let head = self.state.head(workers);
        let saved_at_ms = head.saved_at_ms;
        let saved = match file::save(&self.path, &head, &self.state.index) {
            Ok(saved) => saved,
            Err(error) => return self.record_failure(&error),
        };
        let save_s = clock.now().since(started).as_secs_f64();
        self.telemetry.record_save(LastSnapshot {
            saved_at_ms,
            bytes: saved.bytes,
            save_s,
        });
        let (file, bytes, blocks) = (shown(&self.path), saved.bytes, saved.summary.blocks);
        if self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!(%file, bytes, blocks, save_s, "the index is saved again");
        } else {
            tracing::debug!(%file, bytes, blocks, save_s, "index saved");
        }
    }

    fn record_failure(&self, error: &dyn std::fmt::Display) {
        self.telemetry.record_failure();
        let file = shown(&self.path);
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::error!(%file, %error, "the index could not be saved: it is tried again after kv_events.snapshot.interval; make the folder writable");
        }
    }
}

/// Drops the targets of workers without a name in the snapshot: they were added while it was saved.
fn drop_unnamed(index: &KvIndex, workers: &[NumberedWorker]) {
    for target in index.unproven_targets() {
        if workers.iter().all(|worker| worker.id != target.worker) {
            index.retire_worker(target.worker);
        }
    }
    while index.sweep() {}
}

impl LastingState {
    /// Returns a snapshot as bytes, of the form of the file; `workers`: those whose numbers it uses,
    /// as known before.
    pub(crate) fn to_bytes(&self, workers: &[NumberedWorker]) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        file::write(&mut bytes, &self.head(workers), &self.index)?;
        Ok(bytes)
    }

    /// Loads a snapshot of the form of the file; the index is empty. Returns the workers in it.
    pub(crate) fn load_bytes(
        &self,
        mut bytes: &[u8],
    ) -> Result<Vec<NumberedWorker>, RejectedSnapshot> {
        let (head, _) = file::read(&mut bytes, &self.index)?;
        Ok(self.take_over(head))
    }

    fn head(&self, workers: &[NumberedWorker]) -> SnapshotHead {
        let learned = self.router.learned(self.clock.now());
        SnapshotHead::new(self.clock.unix_ms(), workers, learned)
    }

    /// Takes over what the head of a snapshot says, and drops what it does not name. Returns the
    /// workers.
    fn take_over(&self, head: SnapshotHead) -> Vec<NumberedWorker> {
        let (workers, mut learned) = head.into_parts();
        drop_unnamed(&self.index, &workers);
        let known: HashSet<WorkerId> = workers.iter().map(|worker| worker.id).collect();
        learned.retain(|id| known.contains(&id));
        self.router.take_over(self.clock.now(), learned);
        workers
    }
}

/// Waits briefly until the streams have proven, or not, what was loaded: then the first requests
/// find it.
pub(crate) async fn wait_for_proofs(index: &KvIndex) {
    let proven = async {
        while !index.unproven_targets().is_empty() {
            tokio::time::sleep(PROOF_CHECK).await;
        }
    };
    let _ = tokio::time::timeout(LONGEST_PROOF, proven).await;
}

/// Drops what is known of loaded workers that have not appeared for a while: they are not configured
/// any more.
pub(crate) async fn forget_absent_workers(fleet: Arc<Fleet>, router: Arc<Router>) {
    tokio::time::sleep(LONGEST_ABSENCE).await;
    let workers = fleet.forget_unclaimed();
    for worker in &workers {
        router.forget(*worker);
    }
    if !workers.is_empty() {
        tracing::info!(
            workers = workers.len(),
            "workers of the snapshot that are not configured any more: their blocks are dropped"
        );
    }
}

fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}
