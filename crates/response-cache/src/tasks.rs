//! The owner of tasks that end by themselves: whoever drops it ends those that have not.

use parking_lot::Mutex;
use tokio::task::JoinSet;

/// Tasks, as many as whoever starts them has permits for.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    /// Call inside a tokio runtime.
    pub(crate) fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        // Those that are over.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}
