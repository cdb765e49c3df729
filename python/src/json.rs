//! JSON values as objects of Python, and back.

use pyo3::{
    IntoPyObjectExt,
    exceptions::{PyTypeError, PyValueError},
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyList},
};
use serde_json::{Map, Value};

/// Returns a value as an object of Python. Values that were read from a text are not nested too
/// deeply for it.
pub(crate) fn to_python(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    match value {
        Value::Null => Ok(py.None()),
        Value::Bool(value) => value.into_py_any(py),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into_py_any(py),
            (None, Some(number)) => number.into_py_any(py),
            (None, None) => number.as_f64().into_py_any(py),
        },
        Value::String(text) => text.into_py_any(py),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(to_python(py, item)?)?;
            }
            list.into_py_any(py)
        }
        Value::Object(members) => {
            let dict = PyDict::new(py);
            for (name, member) in members {
                dict.set_item(name, to_python(py, member)?)?;
            }
            dict.into_py_any(py)
        }
    }
}

/// Returns the members of `argument`, a dict, as JSON; none of `None`.
///
/// # Errors
///
/// `TypeError` or `ValueError`: a value has no form in JSON.
pub(crate) fn members(
    argument: &str,
    dict: Option<&Bound<'_, PyDict>>,
) -> PyResult<Map<String, Value>> {
    let Some(dict) = dict else {
        return Ok(Map::new());
    };
    // A half of a surrogate pair is found here.
    serde_json::from_str(&dumps(argument, dict)?)
        .map_err(|error| PyValueError::new_err(format!("{argument} is no JSON object: {error}")))
}

/// Returns `argument`, a dict, as a text that is JSON and YAML.
///
/// # Errors
///
/// Those of [`members`].
pub(crate) fn yaml(argument: &str, dict: &Bound<'_, PyDict>) -> PyResult<String> {
    let members = members(argument, Some(dict))?;
    let text = serde_json::to_string(&members)
        .map_err(|error| PyValueError::new_err(format!("{argument} is no JSON object: {error}")))?;
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if is_printable(character) {
            printable.push(character);
        } else {
            // It stands in a text, in which both have this escape.
            let code = u32::from(character);
            printable.extend(format!("\\u{code:04x}").chars());
        }
    }
    Ok(printable)
}

/// Returns whether YAML takes a character of a JSON text as it is.
fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
}

/// Returns the JSON text of a dict, in ASCII.
fn dumps(argument: &str, dict: &Bound<'_, PyDict>) -> PyResult<String> {
    static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = dict.py();
    let options = PyDict::new(py);
    // NaN and infinity are not JSON.
    options.set_item(intern!(py, "allow_nan"), false)?;
    DUMPS
        .import(py, "json", "dumps")?
        .call((dict,), Some(&options))
        .map_err(|failed| named(argument, py, failed))?
        .extract()
}

/// Returns an error of `json.dumps` with the argument's name.
fn named(argument: &str, py: Python<'_>, failed: PyErr) -> PyErr {
    let message = format!("{argument}: {}", failed.value(py));
    if failed.is_instance_of::<PyTypeError>(py) {
        PyTypeError::new_err(message)
    } else if failed.is_instance_of::<PyValueError>(py) {
        PyValueError::new_err(message)
    } else {
        failed
    }
}
