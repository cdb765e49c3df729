//! Token ids from Python.
//!
//! Buffers are copied, not borrowed: another thread may write to a buffer while the interpreter's
//! lock is released, and a copy of a prompt costs less than its hashes.

/// Most tokens of one argument.
pub(crate) use event_publisher::MOST_TOKENS;
use pyo3::{
    buffer::PyUntypedBuffer,
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBool, PyBytes, PyList, PyMemoryView, PySequence, PyString, PyTuple},
};

/// Number of tokens from which a call lets other Python threads run meanwhile. Below it the wait
/// for the interpreter's lock would be longer than the work.
const DETACHED_FROM: usize = 4096;
/// Bytes of a token in a buffer.
const TOKEN_BYTES: usize = 4;

/// The kinds of values that hold token ids, for messages.
const EXPECTED: &str = "a sequence of integers from 0 to 4294967295, bytes of native 32-bit integers, or a contiguous \
                        buffer of them such as array.array('I') or a numpy.uint32 array";

/// Returns the token ids of `value`, which the caller passed as `argument`.
///
/// # Errors
///
/// `TypeError` for a value of another kind; `ValueError` for an id out of range, a buffer of another
/// layout, and more than [`MOST_TOKENS`] ids.
pub(crate) fn token_ids(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if let Ok(list) = value.cast_exact::<PyList>() {
        within_limit(argument, list.len())?;
        // The `__index__` of an item may change the list.
        return of_tuple(argument, &list.to_tuple());
    }
    if let Ok(tuple) = value.cast_exact::<PyTuple>() {
        return of_tuple(argument, tuple);
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return of_bytes(argument, bytes.as_bytes());
    }
    if value.is_instance_of::<PyString>() {
        return Err(wrong_type(argument, value));
    }
    if let Ok(buffer) = buffer_of(value) {
        let tokens = of_buffer(argument, value, &buffer);
        buffer.release(value.py());
        return tokens;
    }
    if value.is_instance_of::<PySequence>() {
        return of_items(argument, value);
    }
    Err(wrong_type(argument, value))
}

/// Runs `work` on so many tokens, with the interpreter's lock released if they are many.
pub(crate) fn detached_from<R: Send>(
    py: Python<'_>,
    tokens: usize,
    work: impl FnOnce() -> R + Send,
) -> R {
    if tokens < DETACHED_FROM {
        work()
    } else {
        py.detach(work)
    }
}

fn of_bytes(argument: &str, bytes: &[u8]) -> PyResult<Vec<u32>> {
    within_limit(argument, bytes.len() / TOKEN_BYTES)?;
    let (words, rest) = bytes.as_chunks::<TOKEN_BYTES>();
    if !rest.is_empty() {
        return Err(PyValueError::new_err(format!(
            "{argument} has {} bytes: expected {TOKEN_BYTES} for each token, native byte order",
            bytes.len()
        )));
    }
    Ok(words.iter().map(|word| u32::from_ne_bytes(*word)).collect())
}

/// Returns the buffer of `value`. Some have no strides, such as those of ctypes; a view of them has.
fn buffer_of(value: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    PyUntypedBuffer::get(value)
        .or_else(|_| PyUntypedBuffer::get(PyMemoryView::from(value)?.as_any()))
}

fn of_buffer(
    argument: &str,
    value: &Bound<'_, PyAny>,
    buffer: &PyUntypedBuffer,
) -> PyResult<Vec<u32>> {
    let (dimensions, item_bytes) = (buffer.dimensions(), buffer.item_size());
    let signs = signedness(buffer.format().to_bytes());
    let Some(is_signed) = signs.filter(|_| item_bytes == TOKEN_BYTES) else {
        let format = buffer.format().to_string_lossy();
        return Err(PyTypeError::new_err(format!(
            "{argument} is a buffer of format {format:?} with items of {item_bytes} bytes: expected native 32-bit \
             integers ('I'), for example array.array('I', ...) or numpy.asarray(..., dtype=numpy.uint32)"
        )));
    };
    if dimensions != 1 || !buffer.is_c_contiguous() {
        let form = if dimensions == 1 {
            "has gaps between its items".to_owned()
        } else {
            format!("has {dimensions} dimensions")
        };
        return Err(PyValueError::new_err(format!(
            "{argument} is a buffer that {form}: expected one contiguous dimension, for example \
             numpy.ascontiguousarray(...).ravel()"
        )));
    }
    within_limit(argument, buffer.len_bytes() / TOKEN_BYTES)?;
    // It takes `>` for the native order of bytes, which is why `signedness` comes first.
    let tokens = match buffer.as_typed::<u32>() {
        Ok(aligned) => aligned.to_vec(value.py())?,
        // Signed items, ones that are not aligned, and formats that name the byte order.
        Err(_) => {
            let copied = PyMemoryView::from(value)?.call_method0("tobytes")?;
            of_bytes(argument, copied.cast::<PyBytes>()?.as_bytes())?
        }
    };
    // Unsigned items are all token ids: they are not read once more.
    if is_signed && let Some((at, token)) = first_negative(&tokens) {
        return Err(out_of_range(argument, at, &token.to_string()));
    }
    Ok(tokens)
}

/// Returns the first negative one among the items of a signed buffer, with its place.
fn first_negative(items: &[u32]) -> Option<(usize, i32)> {
    let items = items.iter().map(|item| item.cast_signed());
    items.enumerate().find(|(_, item)| *item < 0)
}

/// Returns whether integers of a buffer's format are signed; `None` for another kind of items or
/// another byte order.
fn signedness(format: &[u8]) -> Option<bool> {
    let own_order = if cfg!(target_endian = "little") {
        b"@=<"
    } else {
        b"@=>"
    };
    let kind = match format {
        [kind] => kind,
        [order, kind] if own_order.contains(order) => kind,
        _ => return None,
    };
    match kind {
        b'I' | b'L' => Some(false),
        b'i' | b'l' => Some(true),
        _ => None,
    }
}

fn of_tuple(argument: &str, tuple: &Bound<'_, PyTuple>) -> PyResult<Vec<u32>> {
    within_limit(argument, tuple.len())?;
    let mut tokens = Vec::with_capacity(tuple.len());
    for item in tuple.iter_borrowed() {
        tokens.push(of_item(argument, tokens.len(), &item)?);
    }
    Ok(tokens)
}

fn of_items(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let mut tokens = Vec::new();
    for item in value.try_iter()? {
        within_limit(argument, tokens.len() + 1)?;
        tokens.push(of_item(argument, tokens.len(), &item?)?);
    }
    Ok(tokens)
}

fn of_item(argument: &str, at: usize, item: &Bound<'_, PyAny>) -> PyResult<u32> {
    let token = item
        .extract::<u32>()
        .map_err(|error| item_error(argument, at, item, error))?;
    // `False` and `True` are integers of Python.
    if token <= 1 && item.is_instance_of::<PyBool>() {
        return Err(wrong_item(argument, at, item));
    }
    Ok(token)
}

fn within_limit(argument: &str, tokens: usize) -> PyResult<()> {
    if tokens <= MOST_TOKENS {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{argument} has {tokens} or more tokens: expected at most {MOST_TOKENS}"
    )))
}

fn item_error(argument: &str, at: usize, item: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = item.py();
    if error.is_instance_of::<PyTypeError>(py) {
        wrong_item(argument, at, item)
    } else if error.is_instance_of::<pyo3::exceptions::PyOverflowError>(py) {
        out_of_range(argument, at, &shown(item))
    } else {
        // The item's own `__index__` failed, or the user pressed Ctrl-C in it.
        error
    }
}

fn out_of_range(argument: &str, at: usize, found: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{argument}[{at}] is {found}: expected a token id from 0 to 4294967295"
    ))
}

fn wrong_item(argument: &str, at: usize, item: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "{argument}[{at}] is {} of type {}: expected an integer",
        shown(item),
        type_name(item)
    ))
}

fn wrong_type(argument: &str, value: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "{argument} is of type {}: expected {EXPECTED}",
        type_name(value)
    ))
}

/// Returns the beginning of a value's text, for messages.
pub(crate) fn shown(value: &Bound<'_, PyAny>) -> String {
    match value.repr() {
        Ok(text) => text.to_string_lossy().chars().take(64).collect(),
        // Python refuses the text of a very large integer.
        Err(_) => "a value without a text".to_owned(),
    }
}

/// Returns the name of a value's type, for messages.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(
        |_| "object".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}
