//! Changes that operators may make while the router runs. The program that wires the router up
//! implements them; this crate defines the forms of calls and answers.

use std::{fmt, sync::Arc, time::Duration};

use api::{HistoryEntry, Problem, ReloadOutcome};
use config::Settings;
use serde_json::{Map, Value};

/// A worker that an operator adds.
#[derive(Clone, Debug)]
pub struct NamedWorker {
    /// Its required name; `None`: that of the entry, else the host and port of its URL.
    pub name: Option<String>,
    /// An entry of `workers`.
    pub entry: Map<String, Value>,
    /// Lease time: the worker is removed unless it is added again within this time.
    pub lease_ttl: Option<Duration>,
}

/// The reason why a worker was refused.
#[derive(Clone, Debug)]
pub enum WorkerRejection {
    /// A worker of that name exists.
    Exists(String),
    /// Problems of its entry, or of the resulting configuration.
    Problems(Vec<Problem>),
    /// The address is forbidden for engines.
    Forbidden(String),
}

/// Interface for changes of a running router. The settings and the refused state of those on disk
/// are in memory; every other call reads or writes files, or waits for a call that does: from async
/// code only by `run_blocking`.
pub trait Control: fmt::Debug + Send + Sync {
    /// Returns the settings in force.
    fn settings(&self) -> Arc<Settings>;
    /// Reads the configuration again. `dry_run`: only reports the outcome.
    fn reload(&self, dry_run: bool) -> ReloadOutcome;
    /// Restores the configuration of an applied change; `None`: the number is unknown or no longer
    /// stored.
    fn rollback(&self, id: u64) -> Option<ReloadOutcome>;
    /// Returns the latest changes, newest first.
    fn history(&self) -> Vec<HistoryEntry>;
    /// Returns whether the configuration on disk differs from the one in force because it was
    /// refused.
    fn is_refused(&self) -> bool;
    /// Adds a worker; returns its name. `replace`: also replaces one of that name, and then the
    /// second value is true.
    ///
    /// # Errors
    ///
    /// The worker was refused, and nothing changed.
    fn add_worker(
        &self,
        worker: NamedWorker,
        replace: bool,
    ) -> Result<(String, bool), WorkerRejection>;
    /// Removes a worker; `false`: there never was one of that name. Its running requests go on.
    ///
    /// # Errors
    ///
    /// Another part of the configuration needs it, and nothing changed.
    fn remove_worker(&self, name: &str) -> Result<bool, WorkerRejection>;
    /// Drains a worker or resumes it; `false`: there is none of that name. The resume of a worker
    /// that is gone ends a drain that replicas share.
    fn drain_worker(&self, name: &str, drain: DrainRequest) -> bool;
}

/// What an operator wants of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainRequest {
    /// No new requests.
    Drain,
    /// New requests again.
    Resume,
}

/// Makes a change on a blocking thread, where no request waits for it. A change that was begun goes
/// on when its caller leaves.
pub(crate) async fn run_blocking<T: Send + 'static>(
    control: &Arc<dyn Control>,
    change: impl FnOnce(&dyn Control) -> T + Send + 'static,
) -> T {
    let control = Arc::clone(control);
    match runtime::spawn_blocking(move || change(&*control)).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The program ends.
            Err(_) => std::future::pending().await,
        },
    }
}
