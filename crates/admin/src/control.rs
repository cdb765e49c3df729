//! What operators may change while the router runs. The changing is done by whoever wires the router up: this crate knows
//! the shapes of calls and answers.

use std::{fmt, sync::Arc, time::Duration};

use config::{Problem, Settings};
use serde::Serialize;
use serde_json::{Map, Value};

/// What came of a change of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReloadOutcome {
    /// Whether it is in force.
    pub applied: bool,
    /// Keys that are in force with other values than before, or would be.
    pub changed: Vec<String>,
    /// Keys whose new values count from the next start on.
    pub restart_needed: Vec<String>,
    /// Why nothing changed; empty where it is or would be taken.
    pub problems: Vec<Problem>,
}

/// One change of the configuration, or one that was refused.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryEntry {
    /// Counts up from 1, which is the start.
    pub id: u64,
    /// When, RFC 3339.
    pub at: String,
    /// Who asked for it: `start`, `file`, `admin`, `signal`, `discovery`, `lease`.
    pub source: &'static str,
    /// `applied` or `rejected`.
    pub result: &'static str,
    /// Keys that changed.
    pub changed: Vec<String>,
}

/// A worker that an operator names.
#[derive(Clone, Debug)]
pub struct NamedWorker {
    /// The name it must have; `None`: that of the entry, else the place of its URL.
    pub name: Option<String>,
    /// An entry of `workers`.
    pub entry: Map<String, Value>,
    /// It goes unless it is named again within this.
    pub lease_ttl: Option<Duration>,
}

/// Why a worker was not taken.
#[derive(Clone, Debug)]
pub enum WorkerRejection {
    /// There is one of that name.
    Exists(String),
    /// Its entry, or what would come of it.
    Problems(Vec<Problem>),
    /// No engine may be there.
    Forbidden(String),
}

/// Changes a running router. The settings, and whether those on disk were refused, are at hand; whatever else is asked
/// reads or writes files, or waits for somebody who does: from async code by `aside` only.
pub trait Control: fmt::Debug + Send + Sync {
    /// The settings in force.
    fn settings(&self) -> Arc<Settings>;
    /// Reads the configuration anew. `dry_run`: only says what would come of it.
    fn reload(&self, dry_run: bool) -> ReloadOutcome;
    /// Takes the configuration of an applied change again; `None`: there is none of that number any more.
    fn rollback(&self, id: u64) -> Option<ReloadOutcome>;
    /// The latest changes, newest first.
    fn history(&self) -> Vec<HistoryEntry>;
    /// Whether the configuration on disk is another one than that in force, because it was refused.
    fn is_refused(&self) -> bool;
    /// Takes a worker in; its name. `replace`: also in the place of one of that name, and then the second is true.
    ///
    /// # Errors
    ///
    /// It was not taken, and nothing changed.
    fn add_worker(
        &self,
        worker: NamedWorker,
        replace: bool,
    ) -> Result<(String, bool), WorkerRejection>;
    /// Takes a worker out; `false`: there never was one of that name. Its running requests go on.
    ///
    /// # Errors
    ///
    /// Something else of the configuration needs it, and nothing changed.
    fn remove_worker(&self, name: &str) -> Result<bool, WorkerRejection>;
}

/// Has a change made where no request waits for it. One that was begun goes on when its caller leaves.
pub(crate) async fn run_blocking<T: Send + 'static>(
    control: &Arc<dyn Control>,
    change: impl FnOnce(&dyn Control) -> T + Send + 'static,
) -> T {
    let control = Arc::clone(control);
    match tokio::task::spawn_blocking(move || change(&*control)).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The program ends.
            Err(_) => std::future::pending().await,
        },
    }
}
