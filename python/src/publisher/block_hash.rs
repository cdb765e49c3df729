//! Hashes of blocks from Python.

use kv_events::vllm::WireHash;
use pyo3::{
    exceptions::{PyOverflowError, PyTypeError, PyValueError},
    prelude::*,
    types::{PyBool, PyBytes, PyString},
};

use crate::tokens::{MOST_TOKENS, shown, type_name};

/// Returns the hashes of a sequence that the caller passed as `argument`.
pub(super) fn block_hashes(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<WireHash>> {
    let is_one = value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyString>();
    let items = value.try_iter().ok().filter(|_| !is_one).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{argument} is of type {}: expected a sequence of hashes",
            type_name(value)
        ))
    })?;
    let mut hashes = Vec::new();
    for item in items {
        if hashes.len() >= MOST_TOKENS {
            return Err(PyValueError::new_err(format!(
                "{argument} has more than {MOST_TOKENS} hashes: expected at most that"
            )));
        }
        hashes.push(block_hash(
            &format!("{argument}[{}]", hashes.len()),
            &item?,
        )?);
    }
    Ok(hashes)
}

/// Returns a hash: an integer of 64 bits, signed or not, or the bytes of a digest.
pub(super) fn block_hash(name: &str, value: &Bound<'_, PyAny>) -> PyResult<WireHash> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return digest(bytes.as_bytes()).ok_or_else(|| {
            PyValueError::new_err(format!(
                "{name} has {} bytes: expected a digest of 8 to 32 bytes",
                bytes.as_bytes().len()
            ))
        });
    }
    if value.is_instance_of::<PyBool>() {
        return Err(wrong_type(name, value));
    }
    let number = value.extract::<u64>();
    let number = number.or_else(|_| value.extract::<i64>().map(i64::cast_unsigned));
    number.map(WireHash::from).map_err(|error| {
        let py = value.py();
        if error.is_instance_of::<PyOverflowError>(py) {
            PyValueError::new_err(format!(
                "{name} is {}: expected an integer from -2**63 to 2**64 - 1",
                shown(value)
            ))
        } else if error.is_instance_of::<PyTypeError>(py) {
            wrong_type(name, value)
        } else {
            error
        }
    })
}

/// Returns the digest of these bytes, which are its end.
fn digest(bytes: &[u8]) -> Option<WireHash> {
    let mut digest = [0; 32];
    let start = digest.len().checked_sub(bytes.len())?;
    digest[start..].copy_from_slice(bytes);
    (bytes.len() >= 8).then_some(WireHash(digest))
}

fn wrong_type(name: &str, value: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "{name} is of type {}: expected an integer or the bytes of a digest",
        type_name(value)
    ))
}
