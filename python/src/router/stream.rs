//! The reply of a generation, as it arrives.

use std::{mem, sync::Arc};

use pyo3::{
    IntoPyObjectExt,
    exceptions::{PyStopAsyncIteration, PyStopIteration, PyValueError},
    prelude::*,
};
use serde_json::Value;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use warmroute::embed::{CallError, GenerationStream};

use super::{OpenRouter, operations::IntoPython, raised};
use crate::{
    call::{Call, Output},
    json, process_runtime,
};

/// The reply of ``Router.generate``: an asynchronous iterator of dicts with ``token_ids``; also an
/// iterator that waits on the thread that calls it. Dropping it cancels the generation.
///
/// Each dict is a choice of a chunk: ``index``, ``text``, ``token_ids`` (a list of integers) and
/// ``finish_reason`` (a text in the choice's last dict). The last dict of all has ``usage``, with
/// ``prompt_tokens`` and ``completion_tokens``, and an empty list of ``token_ids``.
///
/// Raises:
///     WarmrouteError: the generation failed; nothing follows.
#[pyclass(frozen, module = "warmroute")]
#[derive(Debug)]
pub(crate) struct TokenStream {
    reply: Arc<SharedReply>,
    /// Each call for the next part has a clone until it ends.
    calls: Arc<()>,
}

/// A part of a reply, or the reason why nothing follows.
type Part = Result<Value, CallError>;

/// A reply that several calls may use at once.
#[derive(Debug)]
struct SharedReply {
    /// Locked from the search for a part until the part has reached Python, or was put back.
    state: Arc<Mutex<ReplyState>>,
    /// Whether it is closed, for a call that waits for the next part.
    closed: watch::Sender<bool>,
}

#[derive(Debug)]
struct ReplyState {
    /// `None` after the end. Its router stays open until then.
    running: Option<(GenerationStream, Arc<OpenRouter>)>,
    /// The next part, if a call that had it was cancelled.
    returned: Option<Part>,
}

impl SharedReply {
    /// Finds the next part.
    async fn next(self: Arc<Self>) -> TakenPart {
        let mut closed = self.closed.subscribe();
        let closed = async move { drop(closed.wait_for(|closed| *closed).await) };
        let state = Arc::clone(&self.state).lock_owned().await;
        let mut taken = TakenPart {
            part: None,
            state,
            _end: EndIfClosed(self),
        };
        let ReplyState { running, returned } = &mut *taken.state;
        let part = match (returned.take(), running.as_mut()) {
            (Some(part), _) => Some(part),
            (None, Some((stream, _))) => tokio::select! {
                biased;
                () = closed => None,
                part = stream.next() => part,
            },
            (None, None) => None,
        };
        if !matches!(part, Some(Ok(_))) {
            *running = None;
        }
        taken.part = part;
        taken
    }

    /// Cancels the generation, without a wait: a call that uses it ends it.
    fn close(&self) {
        // In a fork there is nothing to cancel, and its locks may be held for ever.
        if process_runtime::current().is_ok() {
            self.closed.send_replace(true);
            self.end_if_closed();
        }
    }

    fn end_if_closed(&self) {
        if !*self.closed.borrow() {
            return;
        }
        // This may be a thread of Python.
        let context = process_runtime::current().map(|runtime| runtime.enter());
        if let (Ok(_), Ok(mut state)) = (&context, self.state.try_lock()) {
            state.running = None;
            state.returned = None;
        }
    }
}

/// Ends a reply that was closed while it was locked: dropped after the lock.
struct EndIfClosed(Arc<SharedReply>);

impl Drop for EndIfClosed {
    fn drop(&mut self) {
        self.0.end_if_closed();
    }
}

/// The next part, `None` at the end. Unless it reaches Python, the next call gets it.
struct TakenPart {
    part: Option<Part>,
    state: OwnedMutexGuard<ReplyState>,
    _end: EndIfClosed,
}

impl TakenPart {
    /// Returns the part as an object of Python, or raises `end` in its place.
    fn deliver(mut self, py: Python<'_>, end: fn(()) -> PyErr) -> PyResult<Py<PyAny>> {
        let part = self.part.take();
        drop(self);
        match part {
            Some(Ok(part)) => json::to_python(py, &part),
            Some(Err(failed)) => Err(raised(failed)),
            None => Err(end(())),
        }
    }
}

impl Drop for TakenPart {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            self.state.returned = Some(part);
        }
    }
}

impl TokenStream {
    pub(super) fn new(stream: GenerationStream, router: Arc<OpenRouter>) -> Self {
        let state = ReplyState {
            running: Some((stream, router)),
            returned: None,
        };
        Self {
            reply: Arc::new(SharedReply {
                state: Arc::new(Mutex::new(state)),
                closed: watch::Sender::new(false),
            }),
            calls: Arc::new(()),
        }
    }
}

impl IntoPython for TokenStream {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.into_py_any(py)
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        self.reply.close();
        if process_runtime::current().is_err() {
            // In a fork its locks may be held for ever.
            mem::forget(Arc::clone(&self.reply));
        }
    }
}

#[pymethods]
impl TokenStream {
    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__(slf: Py<Self>) -> Call {
        let stream = slf.get();
        let next = Arc::clone(&stream.reply).next();
        // A stream without a name is not closed while it is awaited.
        let kept = (Arc::clone(&stream.calls), slf);
        Call::keeping("TokenStream.__anext__", kept, async move {
            let part = next.await;
            let output: Output =
                Box::new(move |py| part.deliver(py, PyStopAsyncIteration::new_err));
            output
        })
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        // A call that waits on this thread, or in its event loop, would never end.
        if Arc::strong_count(&self.calls) > 1 {
            return Err(PyValueError::new_err("stream already executing"));
        }
        let _call = Arc::clone(&self.calls);
        let part = process_runtime::block_on(py, Arc::clone(&self.reply).next())?;
        part.deliver(py, PyStopIteration::new_err)
    }

    /// Cancel the generation, unless it has ended. A call that waits for the next part finds the
    /// end.
    fn aclose(&self) -> Call {
        let reply = Arc::clone(&self.reply);
        let output: Output = Box::new(move |py| {
            reply.close();
            Ok(py.None())
        });
        Call::done("TokenStream.aclose", output)
    }

    /// Cancel the generation, as ``aclose`` does, on this thread.
    fn close(&self) {
        self.reply.close();
    }
}
