//! Waking the event loops in which calls wait.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use pyo3::{
    intern,
    prelude::*,
    pyclass::{PyTraverseError, PyVisit},
    sync::PyOnceLock,
};

use crate::process_runtime;

/// All waiters; `None` when the interpreter ends. Locked only by threads of Python, and while no code
/// of Python runs.
static WAITERS: Mutex<Option<WaiterTable>> = Mutex::new(Some(WaiterTable {
    next_id: 0,
    waiters: BTreeMap::new(),
}));

struct WaiterTable {
    next_id: u64,
    waiters: BTreeMap<u64, Weak<LoopWaiter>>,
}

/// An `asyncio.Future`, and the loop whose thread alone may complete it.
///
/// Only objects of Python keep it, so that the garbage collector finds a loop that has gone with its
/// calls.
pub(super) struct LoopWaiter {
    id: u64,
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
}

impl LoopWaiter {
    /// # Errors
    ///
    /// The interpreter ends: nothing wakes the loop any more.
    pub(super) fn new(event_loop: &Bound<'_, PyAny>) -> PyResult<Arc<Self>> {
        let future = event_loop.call_method0(intern!(event_loop.py(), "create_future"))?;
        let mut table = WAITERS.lock();
        let Some(table) = table.as_mut() else {
            return Err(process_runtime::exiting());
        };
        let id = table.next_id;
        table.next_id += 1;
        let waiter = Arc::new(Self {
            id,
            event_loop: event_loop.clone().unbind(),
            future: future.unbind(),
        });
        table.waiters.insert(id, Arc::downgrade(&waiter));
        Ok(waiter)
    }

    /// Returns the iterator that waits for the future.
    pub(super) fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let wait = self.future.bind(py).call_method0(intern!(py, "__await__"));
        wait.map(Bound::unbind)
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        visit.call(&self.future)
    }

    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        static SET_DONE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let set_done = SET_DONE.get_or_try_init(py, || {
            let function = wrap_pyfunction!(set_done, py)?;
            Ok::<_, PyErr>(function.into_any().unbind())
        })?;
        let arguments = (set_done, &self.future);
        let event_loop = self.event_loop.bind(py);
        event_loop.call_method1(intern!(py, "call_soon_threadsafe"), arguments)?;
        Ok(())
    }
}

impl Drop for LoopWaiter {
    fn drop(&mut self) {
        if let Some(table) = WAITERS.lock().as_mut() {
            table.waiters.remove(&self.id);
        }
    }
}

/// Completes the future of a waiter soon, from any thread.
pub(super) fn wake_later(waiter: Weak<LoopWaiter>) {
    process_runtime::attach_later(move |py| wake(py, &waiter));
}

/// Completes the futures of all calls that wait, and lets no further call wait. For the interpreter's
/// end.
pub(crate) fn wake_all(py: Python<'_>) {
    let table = WAITERS.lock().take();
    for waiter in table
        .into_iter()
        .flat_map(|table| table.waiters.into_values())
    {
        wake(py, &waiter);
    }
}

fn wake(py: Python<'_>, waiter: &Weak<LoopWaiter>) {
    if let Some(waiter) = waiter.upgrade() {
        // Nothing waits in a loop that is closed.
        let _ = waiter.complete(py);
    }
}

/// Completes a future that is not cancelled.
#[pyfunction]
fn set_done(py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<()> {
    if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
        future.call_method1(intern!(py, "set_result"), (py.None(),))?;
    }
    Ok(())
}
