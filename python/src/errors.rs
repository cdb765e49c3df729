//! The exception `warmroute.WarmrouteError`.

use pyo3::PyErr;

use python::WarmrouteError;

/// Exceptions that the package defines in Python: a class with attributes of its own cannot be derived from an
/// exception in the stable ABI of Python 3.11.
mod python {
    pyo3::import_exception!(warmroute.errors, WarmrouteError);
}

/// Returns a `WarmrouteError`. `code` is one of the codes of errors that the router sends over HTTP.
pub(crate) fn error(code: &str, message: impl Into<String>) -> PyErr {
    WarmrouteError::new_err((code.to_owned(), message.into()))
}
