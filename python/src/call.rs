//! Awaitable calls: a coroutine object around a Rust future.
//!
//! The first step polls the future on the thread of the event loop: most decisions are made then,
//! and no other thread is woken. A future that has to wait, or that would hold up the event loop,
//! runs as a task of the runtime; the event loop waits for an `asyncio.Future` that the task
//! completes. The output stays in Rust until the coroutine returns it: whoever cancels the coroutine,
//! closes it or forgets it, aborts the task and drops the output, and with it what the output holds.

mod waiter;

use std::{ffi::CString, mem, pin::Pin, sync::Arc};

use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyRuntimeError, PyRuntimeWarning, PyStopIteration},
    intern,
    prelude::*,
    pyclass::{PyTraverseError, PyVisit},
    sync::PyOnceLock,
};
use tokio::{sync::oneshot, task::AbortHandle};

use self::waiter::LoopWaiter;
use crate::{errors::error, process_runtime};

pub(crate) use self::waiter::wake_all;

/// The output of a call, not yet an object of Python.
pub(crate) type Output = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Py<PyAny>> + Send>;

type OutputFuture = Pin<Box<dyn Future<Output = Output> + Send>>;

/// A value that a call keeps until its end.
type KeepAlive = Box<dyn Send>;

/// A call, to be awaited.
#[pyclass(frozen, module = "warmroute._native")]
pub(crate) struct Call {
    /// The method that made it.
    name: &'static str,
    state: Mutex<CallState>,
}

enum CallState {
    Unstarted(UnstartedCall),
    Started(StartedCall),
    Ended,
}

/// A call that was not awaited yet.
struct UnstartedCall {
    work: Work,
    kept: KeepAlive,
}

enum Work {
    /// It is done, and needs no runtime.
    Done(Output),
    /// Its first step is short.
    Short(OutputFuture),
    /// Its first step would hold up the event loop.
    Long(OutputFuture),
}

/// A call whose task runs. Dropping it aborts the task.
struct StartedCall {
    _task: AbortOnDrop,
    waiter: Arc<LoopWaiter>,
    /// The iterator of the `asyncio.Future` for which the event loop waits.
    wait: Py<PyAny>,
    output: oneshot::Receiver<Output>,
    _kept: KeepAlive,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Call {
    /// Returns the call of a future with a short first step. `name` is the method's.
    pub(crate) fn new(
        name: &'static str,
        future: impl Future<Output = Output> + Send + 'static,
    ) -> Self {
        Self::of(name, Work::Short(Box::pin(future)), Box::new(()))
    }

    /// Returns the call of a future whose first step would hold up the event loop.
    pub(crate) fn long(
        name: &'static str,
        future: impl Future<Output = Output> + Send + 'static,
    ) -> Self {
        Self::of(name, Work::Long(Box::pin(future)), Box::new(()))
    }

    /// Returns the call of a future, which keeps a value until the call ends: also longer than the
    /// future.
    pub(crate) fn keeping(
        name: &'static str,
        kept: impl Send + 'static,
        future: impl Future<Output = Output> + Send + 'static,
    ) -> Self {
        Self::of(name, Work::Short(Box::pin(future)), Box::new(kept))
    }

    /// Returns a call that has its output without the runtime, which a fork has not.
    pub(crate) fn done(name: &'static str, output: Output) -> Self {
        Self::of(name, Work::Done(output), Box::new(()))
    }

    fn of(name: &'static str, work: Work, kept: KeepAlive) -> Self {
        Self {
            name,
            state: Mutex::new(CallState::Unstarted(UnstartedCall { work, kept })),
        }
    }

    /// Ends the call, and returns what it was: it is dropped without the lock.
    fn end(&self) -> CallState {
        mem::replace(&mut *self.state.lock(), CallState::Ended)
    }

    /// Runs the call on: returns the future to wait for, or raises `StopIteration` with the output.
    fn resume(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let started = match self.end() {
            CallState::Unstarted(call) => match call.start(py)? {
                Ok(output) => return Err(PyStopIteration::new_err((output,))),
                Err(started) => started,
            },
            CallState::Started(started) => started,
            CallState::Ended => {
                let message = "cannot reuse already awaited coroutine";
                return Err(PyRuntimeError::new_err(message));
            }
        };
        match started.wait.bind(py).call_method0(intern!(py, "__next__")) {
            Ok(future) => {
                *self.state.lock() = CallState::Started(started);
                Ok(future.unbind())
            }
            Err(ended) if ended.is_instance_of::<PyStopIteration>(py) => {
                Err(PyStopIteration::new_err((started.output(py)?,)))
            }
            // The wait was cancelled.
            Err(other) => Err(other),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if matches!(self.state.get_mut(), CallState::Unstarted(_)) {
            let name = self.name;
            // Not after the interpreter's end.
            let _ = Python::try_attach(|py| warn_never_awaited(py, name));
        }
    }
}

/// Warns of a call without effect, as Python does of its own coroutines.
fn warn_never_awaited(py: Python<'_>, name: &str) {
    // The call may be dropped because of an exception, which goes on.
    let raised = PyErr::take(py);
    if let Ok(message) = CString::new(format!("coroutine '{name}' was never awaited")) {
        let category = py.get_type::<PyRuntimeWarning>();
        if let Err(error) = PyErr::warn(py, &category, &message, 1) {
            error.write_unraisable(py, None);
        }
    }
    if let Some(raised) = raised {
        raised.restore(py);
    }
}

#[pymethods]
impl Call {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.resume(py)
    }

    fn send(&self, py: Python<'_>, _value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.resume(py)
    }

    #[pyo3(signature = (typ, val=None, _tb=None))]
    fn throw(
        &self,
        typ: Bound<'_, PyAny>,
        val: Option<Bound<'_, PyAny>>,
        _tb: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        drop(self.end());
        // In the old form the exception is second, behind its type.
        Err(PyErr::from_value(val.unwrap_or(typ)))
    }

    fn close(&self) {
        drop(self.end());
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A locked call is in use.
        let state = self.state.try_lock();
        match state.as_deref() {
            Some(CallState::Started(started)) => {
                started.waiter.traverse(&visit)?;
                visit.call(&started.wait)
            }
            _ => Ok(()),
        }
    }

    fn __clear__(&self) {
        // Only a started call refers to objects that may refer to it; another one shall warn.
        let mut state = self.state.lock();
        if matches!(*state, CallState::Started(_)) {
            let started = mem::replace(&mut *state, CallState::Ended);
            drop(state);
            drop(started);
        }
    }
}

impl UnstartedCall {
    /// Takes the first step: returns the output, or the call where it has to wait.
    fn start(self, py: Python<'_>) -> PyResult<Result<Py<PyAny>, StartedCall>> {
        let Self { work, kept } = self;
        let (future, is_short) = match work {
            Work::Done(output) => return output(py).map(Ok),
            Work::Short(future) => (future, true),
            Work::Long(future) => (future, false),
        };
        let event_loop = running_loop(py)?;
        let waiting = if is_short {
            match process_runtime::poll_once(py, future)? {
                Ok(output) => return output(py).map(Ok),
                Err(waiting) => waiting,
            }
        } else {
            future
        };
        StartedCall::start(py, &event_loop, waiting, kept).map(Err)
    }
}

impl StartedCall {
    fn start(
        py: Python<'_>,
        event_loop: &Bound<'_, PyAny>,
        future: OutputFuture,
        kept: KeepAlive,
    ) -> PyResult<Self> {
        let runtime = process_runtime::current()?;
        // Before any code of Python runs, which may wait for a lock that the future holds.
        let task = runtime.spawn(future);
        let abort = AbortOnDrop(task.abort_handle());
        let waiter = LoopWaiter::new(event_loop)?;
        let wait = waiter.wait(py)?;
        let weak_waiter = Arc::downgrade(&waiter);
        let (sender, output) = oneshot::channel();
        runtime.spawn(async move {
            let ended = match task.await {
                // The coroutine has gone, which drops the output.
                Ok(ended) => sender.send(ended).is_ok(),
                Err(failed) => failed.is_panic(),
            };
            if ended {
                waiter::wake_later(weak_waiter);
            }
        });
        Ok(Self {
            _task: abort,
            waiter,
            wait,
            output,
            _kept: kept,
        })
    }

    /// Returns the output as an object of Python.
    fn output(mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.output.try_recv() {
            Ok(output) => output(py),
            Err(_) if process_runtime::is_exiting() => Err(process_runtime::exiting()),
            Err(_) => {
                let message = "the call failed in the router: please report it";
                Err(error("internal", message))
            }
        }
    }
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    RUNNING_LOOP
        .import(py, "asyncio", "get_running_loop")?
        .call0()
}
