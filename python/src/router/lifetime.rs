//! A router from its start to its end.

use std::{mem, ops::Deref, sync::Arc};

use pyo3::PyResult;
use tokio::sync::oneshot;
use warmroute::embed::{CallError, EmbeddedRouter, EmbeddedSettings};

use crate::process_runtime;

/// A router that is closed when nothing uses it any more: its handle, calls and streams.
#[derive(Debug)]
pub(super) struct OpenRouter(Arc<EmbeddedRouter>);

impl OpenRouter {
    pub(super) fn new(router: Arc<EmbeddedRouter>) -> Arc<Self> {
        Arc::new(Self(router))
    }

    pub(super) fn shared(&self) -> Arc<EmbeddedRouter> {
        Arc::clone(&self.0)
    }
}

impl Deref for OpenRouter {
    type Target = EmbeddedRouter;

    fn deref(&self) -> &EmbeddedRouter {
        &self.0
    }
}

impl Drop for OpenRouter {
    fn drop(&mut self) {
        close_later(Arc::clone(&self.0));
    }
}

/// The end of a start: no result if it panicked.
pub(super) type StartEnd = Result<Result<StartedRouter, CallError>, oneshot::error::RecvError>;

/// Begins to start a router, and returns the receiver of the result. A start for which nobody waits any
/// more goes on, so that it can be undone.
pub(super) fn begin_start(
    settings: EmbeddedSettings,
) -> PyResult<oneshot::Receiver<Result<StartedRouter, CallError>>> {
    process_runtime::run_to_end(move || async move {
        let started = EmbeddedRouter::start(settings).await;
        started.map(|router| StartedRouter(Some(Arc::new(router))))
    })
}

/// A router that is closed unless it is claimed.
pub(super) struct StartedRouter(Option<Arc<EmbeddedRouter>>);

impl StartedRouter {
    pub(super) fn claim(mut self) -> Option<Arc<EmbeddedRouter>> {
        self.0.take()
    }
}

impl Drop for StartedRouter {
    fn drop(&mut self) {
        if let Some(router) = self.0.take() {
            close_later(router);
        }
    }
}

/// Begins to close a router, also for no caller, and returns the receiver of the end.
pub(super) fn close(router: Arc<EmbeddedRouter>) -> PyResult<oneshot::Receiver<()>> {
    if let Err(forked) = process_runtime::current() {
        // None of its threads and tasks are here, and its locks may be held for ever.
        mem::forget(router);
        return Err(forked);
    }
    process_runtime::run_to_end(move || async move { router.close().await })
}

/// Closes a router without a wait.
fn close_later(router: Arc<EmbeddedRouter>) {
    // It fails in a fork only, where there is nothing to close.
    drop(close(router));
}
