//! Tasks, blocking work and threads.

use std::{io, thread};

use tokio::task::JoinHandle;

/// Runs `future` as a task of its own, as `tokio::spawn`.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    tokio::spawn(future)
}

/// Runs `work` on the pool for blocking work, as `tokio::task::spawn_blocking`. A simulation runs
/// it as a task, so that its order is known and virtual time stands meanwhile.
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    match crate::is_simulated() {
        true => tokio::spawn(async move { work() }),
        false => tokio::task::spawn_blocking(work),
    }
}

/// Starts a thread for work that belongs on neither the runtime nor its pool. It is a thread in a
/// simulation too, so only work without effect on virtual time may be given to it.
///
/// # Errors
///
/// The system has no room for another thread.
pub fn spawn_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}
