//! The end of the interpreter with routers that are open.

use std::{
    mem,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use pyo3::prelude::*;
use warmroute::embed::EmbeddedRouter;

use crate::{call, process_runtime};

/// The routers that were started, of which some may have gone.
static STARTED: Mutex<Vec<Weak<EmbeddedRouter>>> = Mutex::new(Vec::new());

/// Lets the interpreter close all routers before its end.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let close_all = wrap_pyfunction!(close_all, py)?;
    py.import("atexit")?
        .call_method1("register", (close_all,))?;
    Ok(())
}

/// Remembers a router until its end.
pub(super) fn remember(router: &Arc<EmbeddedRouter>) {
    let mut started = STARTED.lock();
    started.retain(|router| router.strong_count() > 0);
    started.push(Arc::downgrade(router));
}

/// Closes the routers that are open, and keeps the threads of the runtime from the interpreter.
#[pyfunction]
fn close_all(py: Python<'_>) -> PyResult<()> {
    // A fork has none of the threads, and its locks may be held for ever.
    if !process_runtime::is_running() {
        return Ok(());
    }
    let open = mem::take(&mut *STARTED.lock());
    // All at once, then one after the other is waited for.
    let closing: Vec<_> = open
        .into_iter()
        .filter_map(|router| super::lifetime::close(router.upgrade()?).ok())
        .collect();
    // Their senders end with the close. Ctrl-C ends the wait alone.
    let waited = closing
        .into_iter()
        .try_for_each(|closed| process_runtime::block_on(py, closed).map(drop));
    process_runtime::detach_for_good(py);
    // Functions that run later at the exit may run their event loops on.
    call::wake_all(py);
    waited
}
