//! The keywords of `simulate()`, and the types and ranges of their values.

use std::{fmt::Display, ops::RangeInclusive};

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBool, PyDict, PyString},
};

use crate::tokens::{shown, type_name};

/// Every keyword.
const KNOWN: [&str; 22] = [
    "load",
    "speedup",
    "profile",
    "kv_tokens",
    "event_delay_ms",
    "event_loss",
    "routers",
    "load_sync",
    "exchange_delay_ms",
    "exchange_loss",
    "set",
    "slow",
    "forget",
    "seed",
    "trace_block_tokens",
    "model",
    "sessions",
    "capacity_ratio",
    "find_sessions",
    "warm_up_s",
    "measured_s",
    "tail_s",
];

/// Most values in a list, and entries in a dict.
const MOST_VALUES: usize = 1024;

/// The keywords of a call.
pub(super) struct Options<'a, 'py>(Option<&'a Bound<'py, PyDict>>);

impl<'a, 'py> Options<'a, 'py> {
    /// Checks the names; `TypeError` for an unknown one.
    pub(super) fn new(given: Option<&'a Bound<'py, PyDict>>) -> PyResult<Self> {
        for (name, _) in given.into_iter().flatten() {
            let name: String = name.extract()?;
            if !KNOWN.contains(&name.as_str()) {
                return Err(PyTypeError::new_err(format!(
                    "simulate() got an unexpected keyword argument {name:?}: expected one of {}",
                    KNOWN.join(", ")
                )));
            }
        }
        Ok(Self(given))
    }

    /// Returns the value of a keyword; `None` if it is not given, or given as `None`.
    pub(super) fn get(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(given) = self.0 else {
            return Ok(None);
        };
        Ok(given.get_item(name)?.filter(|value| !value.is_none()))
    }

    /// Returns a number in a range that a message describes.
    pub(super) fn number(
        &self,
        name: &str,
        fits: impl Fn(f64) -> bool,
        expected: &str,
    ) -> PyResult<Option<f64>> {
        let value = self.get(name)?;
        let value = value.map(|value| number(name, &value, fits, expected));
        value.transpose()
    }

    pub(super) fn whole(&self, name: &str, range: RangeInclusive<u64>) -> PyResult<Option<u64>> {
        let value = self.get(name)?;
        value.map(|value| whole(name, &value, &range)).transpose()
    }

    pub(super) fn flag(&self, name: &str) -> PyResult<bool> {
        let Some(value) = self.get(name)? else {
            return Ok(false);
        };
        match value.cast::<PyBool>() {
            Ok(flag) => Ok(flag.is_true()),
            Err(_) => Err(wrong_type(name, &value, "True or False")),
        }
    }

    pub(super) fn text(&self, name: &str) -> PyResult<Option<String>> {
        let value = self.get(name)?;
        value.map(|value| text(name, &value)).transpose()
    }

    /// Returns the entries of a dict with texts as keys.
    pub(super) fn entries(&self, name: &str) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        let Some(value) = self.get(name)? else {
            return Ok(Vec::new());
        };
        let Ok(dict) = value.cast::<PyDict>() else {
            return Err(wrong_type(name, &value, "a dict"));
        };
        if dict.len() > MOST_VALUES {
            return Err(too_many(name));
        }
        dict.iter()
            .map(|(key, value)| Ok((text(&format!("a key of {name}"), &key)?, value)))
            .collect()
    }
}

/// Returns the single value, or the values of a sequence, at least one.
pub(super) fn values<'py>(
    name: &str,
    value: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let items = match value.try_iter() {
        Ok(items) if !value.is_instance_of::<PyString>() => items,
        _ => return Ok(vec![value.clone()]),
    };
    let mut values = Vec::new();
    for item in items {
        if values.len() >= MOST_VALUES {
            return Err(too_many(name));
        }
        values.push(item?);
    }
    if values.is_empty() {
        return Err(PyValueError::new_err(format!(
            "{name} is empty: expected at least one value"
        )));
    }
    Ok(values)
}

pub(super) fn number(
    name: &str,
    value: &Bound<'_, PyAny>,
    fits: impl Fn(f64) -> bool,
    expected: &str,
) -> PyResult<f64> {
    let found = value
        .extract::<f64>()
        .ok()
        .filter(|_| !value.is_instance_of::<PyBool>())
        .ok_or_else(|| wrong_type(name, value, expected))?;
    if fits(found) {
        Ok(found)
    } else {
        Err(out_of_range(name, found, expected))
    }
}

pub(super) fn whole(
    name: &str,
    value: &Bound<'_, PyAny>,
    range: &RangeInclusive<u64>,
) -> PyResult<u64> {
    let expected = format!("a whole number from {} to {}", range.start(), range.end());
    let is_flag = value.is_instance_of::<PyBool>();
    match value.extract::<u64>() {
        Ok(number) if !is_flag && range.contains(&number) => Ok(number),
        Ok(_) if is_flag => Err(wrong_type(name, value, &expected)),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            Err(wrong_type(name, value, &expected))
        }
        _ => Err(out_of_range(name, shown(value), &expected)),
    }
}

pub(super) fn text(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.cast::<PyString>() {
        Ok(text) => text.extract(),
        Err(_) => Err(wrong_type(name, value, "a str")),
    }
}

fn wrong_type(name: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "{name} is {} of type {}: expected {expected}",
        shown(value),
        type_name(value)
    ))
}

fn out_of_range(name: &str, found: impl Display, expected: &str) -> PyErr {
    PyValueError::new_err(format!("{name} is {found}: expected {expected}"))
}

fn too_many(name: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{name} has more than {MOST_VALUES} values: expected at most that"
    ))
}
