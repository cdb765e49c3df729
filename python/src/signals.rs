//! Waiting on a thread of Python, without the interpreter's lock and with an eye on signals.

use std::time::Duration;

use pyo3::prelude::*;

/// Time between two looks for a signal such as Ctrl-C.
pub(crate) const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// Repeats `step` without the interpreter's lock until it has a value, for which it waits at most
/// [`SIGNAL_CHECK`] each time.
///
/// # Errors
///
/// What the handler of a signal raised.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    mut step: impl FnMut() -> Option<T> + Send,
) -> PyResult<T> {
    loop {
        if let Some(value) = py.detach(&mut step) {
            return Ok(value);
        }
        py.check_signals()?;
    }
}
