//! Names of workers.

use std::{fmt, sync::Arc};

use kv_blocks::WorkerId;

/// The workers of this process.
pub trait WorkerDirectory: fmt::Debug + Send + Sync {
    /// Returns the name of a worker, also of one that has left and still has requests.
    fn name(&self, worker: WorkerId) -> Option<Arc<str>>;
    /// Returns the worker with a name.
    fn id(&self, name: &str) -> Option<WorkerId>;
}
