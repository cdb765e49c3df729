//! The extension `warmroute._native` of the Python package: the program `warmroute`, and the classes and functions with
//! which Python programs use its parts.

mod call;
mod command;
mod errors;
mod json;
mod kv_index;
mod process_runtime;
mod publisher;
mod router;
mod signals;
mod simulate;
mod tokens;

use pyo3::prelude::*;

/// Each part registers what it has.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    command::register(module)?;
    kv_index::register(module)?;
    publisher::register(module)?;
    router::register(module)?;
    simulate::register(module)
}
