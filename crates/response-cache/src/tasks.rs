//! An owner of tasks that end by themselves; dropping it aborts the running ones.

use parking_lot::Mutex;
use tokio::task::JoinSet;

/// A set of tasks, bounded by the permits of their starters.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    /// Starts a task. Call inside a tokio runtime.
    pub(crate) fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        // Reaps the finished tasks.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}
