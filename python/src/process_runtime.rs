//! The tokio runtime of the process, which all routers share, and waiting for it without the
//! interpreter's lock.
//!
//! Its threads attach to the interpreter in one task only, which does no more after the
//! interpreter's end has begun ([`attach_later`]).

use std::{
    mem,
    pin::{Pin, pin},
    process,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::RwLock;
use pyo3::prelude::*;
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    errors::error,
    signals::{self, SIGNAL_CHECK},
};

/// The runtime, once it was needed, or the reason why it cannot be started.
static RUNTIME: OnceLock<Result<ProcessRuntime, String>> = OnceLock::new();

/// Whether the interpreter ends: threads of the runtime must not attach any more.
static IS_EXITING: AtomicBool = AtomicBool::new(false);

/// Locked for reading while a thread of the runtime is attached.
static ATTACHED: RwLock<()> = RwLock::new(());

struct ProcessRuntime {
    runtime: Runtime,
    /// Id of the process that has its threads.
    process: u32,
    /// For the task that attaches to the interpreter; not longer than the list of running calls.
    attached: mpsc::UnboundedSender<AttachedWork>,
}

/// Work with objects of the interpreter.
type AttachedWork = Box<dyn FnOnce(Python<'_>) + Send>;

/// Most work for which the interpreter is attached once.
const BATCH: usize = 256;

/// Returns the runtime, which is started at the first call.
///
/// # Errors
///
/// It cannot be started; or the process is a fork of the one in which it runs, and has none of its
/// threads.
pub(crate) fn current() -> PyResult<&'static Runtime> {
    match RUNTIME.get_or_init(start) {
        Ok(started) if started.process == process::id() => Ok(&started.runtime),
        Ok(started) => Err(error(
            "conflict",
            format!(
                "routers were used in process {} before the fork into this one, and their threads do not survive it: \
                 create routers after the fork only, or start the process by \"spawn\"",
                started.process
            ),
        )),
        Err(reason) => Err(error(
            "internal",
            format!("the runtime could not be started: {reason}"),
        )),
    }
}

fn start() -> Result<ProcessRuntime, String> {
    let runtime = Builder::new_multi_thread()
        .thread_name("warmroute")
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let (attached, work) = mpsc::unbounded_channel();
    runtime.spawn(run_attached(work));
    Ok(ProcessRuntime {
        runtime,
        process: process::id(),
        attached,
    })
}

/// Returns whether the runtime runs in this process.
pub(crate) fn is_running() -> bool {
    let started = RUNTIME.get().and_then(|started| started.as_ref().ok());
    started.is_some_and(|started| started.process == process::id())
}

/// Runs a future on this thread, without the interpreter's lock. A signal that raises, such as
/// Ctrl-C, drops the future.
pub(crate) fn block_on<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future<Output: Send> + Send,
{
    block_on_in(py, current()?, || future)
}

/// Runs the future of `make` as [`block_on`] does, for a caller that has the [`current`] runtime
/// already. The future is made where it stays, and not moved.
pub(crate) fn block_on_in<F>(
    py: Python<'_>,
    runtime: &'static Runtime,
    make: impl FnOnce() -> F,
) -> PyResult<F::Output>
where
    F: Future<Output: Send> + Send,
{
    // A future may start tasks where it is dropped.
    let _context = runtime.enter();
    let mut future = pin!(make());
    let mut is_first = true;
    signals::wait(py, || {
        // Most decisions are ready at once: they need no timer, and no thread that can be parked.
        if mem::take(&mut is_first)
            && let Poll::Ready(output) = step(future.as_mut())
        {
            return Some(output);
        }
        let limited = async { timeout(SIGNAL_CHECK, future.as_mut()).await };
        runtime.block_on(limited).ok()
    })
}

/// Polls a future on this thread, without the interpreter's lock: returns its output, or itself if it
/// has to wait.
pub(crate) fn poll_once<F>(py: Python<'_>, mut future: F) -> PyResult<Result<F::Output, F>>
where
    F: Future<Output: Send> + Send + Unpin,
{
    let runtime = current()?;
    Ok(py.detach(|| {
        let _context = runtime.enter();
        match step(Pin::new(&mut future)) {
            Poll::Ready(output) => Ok(output),
            Poll::Pending => Err(future),
        }
    }))
}

/// Polls a future once. Who polls it next is woken in place of this one.
fn step<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a future to its end on a thread of its own, also if nobody waits for it any more. For starts
/// and ends, which must not stop halfway.
pub(crate) fn run_to_end<F>(
    start: impl FnOnce() -> F + Send + 'static,
) -> PyResult<oneshot::Receiver<F::Output>>
where
    F: Future<Output: Send> + 'static,
{
    let runtime = current()?;
    let (sender, receiver) = oneshot::channel();
    runtime.spawn_blocking(move || {
        // An output that nobody waits for is dropped.
        let _ = sender.send(runtime.block_on(start()));
    });
    Ok(receiver)
}

/// Runs `work` soon, with the interpreter's lock, on a thread of the runtime; not if the interpreter
/// ends.
pub(crate) fn attach_later(work: impl FnOnce(Python<'_>) + Send + 'static) {
    if let Some(Ok(started)) = RUNTIME.get() {
        // The task lives as long as the runtime.
        let _ = started.attached.send(Box::new(work));
    }
}

/// Runs work that needs the interpreter's lock. One task does it for all, so that threads do not
/// contend for the lock, and one wait for it serves all work that came meanwhile.
async fn run_attached(mut work: mpsc::UnboundedReceiver<AttachedWork>) {
    let mut batch = Vec::new();
    while work.recv_many(&mut batch, BATCH).await > 0 {
        run_batch(&mut batch);
    }
}

fn run_batch(batch: &mut Vec<AttachedWork>) {
    let _attached = ATTACHED.read();
    if !is_exiting() {
        // Another thread may hold the interpreter's lock for long: tasks of this one are moved meanwhile.
        tokio::task::block_in_place(|| {
            Python::try_attach(|py| batch.drain(..).for_each(|work| work(py)))
        });
    }
    batch.clear();
}

/// Waits until no thread of the runtime is attached to the interpreter, and lets none attach from
/// now on.
pub(crate) fn detach_for_good(py: Python<'_>) {
    py.detach(|| {
        IS_EXITING.store(true, Ordering::SeqCst);
        drop(ATTACHED.write());
    });
}

/// Returns whether the interpreter ends: routers are closed, and no call may wait any more.
pub(crate) fn is_exiting() -> bool {
    IS_EXITING.load(Ordering::SeqCst)
}

/// Returns the exception of a call that comes when the interpreter ends, or waits then.
pub(crate) fn exiting() -> PyErr {
    error("draining", "the interpreter ends: routers are closed")
}
