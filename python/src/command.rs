//! The program `warmroute` in a Python process.

use std::{
    ffi::OsString,
    sync::atomic::{AtomicBool, Ordering},
};

use pyo3::prelude::*;

use crate::errors::error;

/// The program's name in messages, however Python found its code.
const PROGRAM: &str = "warmroute";

/// Whether the program was started in this process.
static STARTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(main, module)?)
}

/// Run the program with these arguments, and return its exit code.
///
/// It runs once in a process, on its main thread: it takes over signals, log and panic hook.
#[pyfunction]
fn main(py: Python<'_>, argv: Vec<OsString>) -> PyResult<u8> {
    restore_interrupt(py)?;
    if STARTED.swap(true, Ordering::Relaxed) {
        return Err(error(
            "conflict",
            "the program has run in this process: expected one call in each, start another process",
        ));
    }
    let arguments = [OsString::from(PROGRAM)].into_iter().chain(argv);
    Ok(py.detach(|| warmroute::run(arguments)).number())
}

/// Gives SIGINT its default effect in place of Python's handler, which would raise `KeyboardInterrupt` when the program
/// has ended. Commands that end in order on SIGINT catch it themselves. An ignored SIGINT stays ignored.
fn restore_interrupt(py: Python<'_>) -> PyResult<()> {
    let signal = py.import("signal")?;
    let interrupt = signal.getattr("SIGINT")?;
    let handler = signal.call_method1("getsignal", (&interrupt,))?;
    if handler.is(&signal.getattr("default_int_handler")?) {
        signal.call_method1("signal", (&interrupt, signal.getattr("SIG_DFL")?))?;
    }
    Ok(())
}
