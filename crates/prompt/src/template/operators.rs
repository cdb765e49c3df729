//! Operators with results of no fixed size, as filters: the budget is charged before the operation.
//!
//! They behave as the template engine's own operators. A filter, unlike a function, cannot be
//! hidden by a variable.

use minijinja::{
    Environment, Error,
    value::{Value, ValueKind},
};

use super::meter::{
    NODE, charge, charge_comparison, charge_items, charge_result, charge_text, check_nesting,
    refused,
};

/// `a ~ b`.
pub(super) const CONCATENATE: &str = "metered_concatenate";
/// `a + b`.
pub(super) const ADD: &str = "metered_add";
/// `a * b`.
pub(super) const MULTIPLY: &str = "metered_multiply";
/// `a == b` and its like.
pub(super) const EQUAL: &str = "metered_equal";
pub(super) const LESS: &str = "metered_less";
/// A value that is sliced, indexed or used as an index.
pub(super) const ITEMS: &str = "metered_items";
/// A value that is searched for another one.
pub(super) const SEARCHED: &str = "metered_searched";
/// A slice.
pub(super) const RESULT: &str = "metered_result";
/// A new list or dictionary, or a value that is put into a namespace.
pub(super) const NESTED: &str = "metered_nested";

pub(super) fn add_operators(environment: &mut Environment<'_>) {
    environment.add_filter(CONCATENATE, |one: &Value, other: &Value| {
        charge_text(one)?;
        charge_text(other)?;
        charge_result(Value::from(format!("{one}{other}")))
    });
    environment.add_filter(ADD, add);
    environment.add_filter(MULTIPLY, multiply);
    environment.add_filter(EQUAL, |one: &Value, other: &Value| {
        charge_comparison(one, other)?;
        Ok::<_, Error>(one == other)
    });
    environment.add_filter(LESS, |one: &Value, other: &Value| {
        charge_comparison(one, other)?;
        Ok::<_, Error>(one < other)
    });
    environment.add_filter(ITEMS, |value: Value| charge_items(&value).map(|()| value));
    environment.add_filter(SEARCHED, |value: Value| {
        match value.kind() {
            // A dictionary takes one lookup.
            ValueKind::Map => {}
            _ => charge_text(&value)?,
        }
        Ok::<_, Error>(value)
    });
    environment.add_filter(RESULT, charge_result);
    environment.add_filter(NESTED, |value: Value| check_nesting(&value).map(|()| value));
}

fn add(one: &Value, other: &Value) -> Result<Value, Error> {
    if let (Some(one), Some(other)) = (one.as_str(), other.as_str()) {
        charge(one.len() + other.len())?;
        return Ok(Value::from([one, other].concat()));
    }
    if is_sequence(one) && is_sequence(other) && !one.is_tuple() && !other.is_tuple() {
        let mut items = Vec::new();
        for item in one.try_iter()?.chain(other.try_iter()?) {
            charge(NODE)?;
            items.push(item);
        }
        return Ok(Value::from(items));
    }
    numbers(one, other, i128::checked_add, |one, other| one + other)
}

fn multiply(one: &Value, other: &Value) -> Result<Value, Error> {
    let (repeated, times) = if is_repeated(one) {
        (one, other)
    } else {
        (other, one)
    };
    if !is_repeated(repeated) {
        return numbers(one, other, i128::checked_mul, |one, other| one * other);
    }
    let times = times
        .as_usize()
        .ok_or_else(|| refused("only a whole number can multiply a text or a list"))?;
    if let Some(text) = repeated.as_str() {
        charge(text.len().saturating_mul(times))?;
        return Ok(Value::from(text.repeat(times)));
    }
    charge_items(repeated)?;
    let items: Vec<Value> = repeated.try_iter()?.collect();
    charge(items.len().saturating_mul(times).saturating_mul(NODE))?;
    let all = items.len() * times;
    Ok(items.into_iter().cycle().take(all).collect())
}

fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn is_repeated(value: &Value) -> bool {
    value.as_str().is_some() || is_sequence(value) && !value.is_tuple()
}

fn numbers(
    one: &Value,
    other: &Value,
    whole: fn(i128, i128) -> Option<i128>,
    float: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    let is_float = |value: &Value| value.kind() == ValueKind::Number && !value.is_integer();
    if !is_number(one) || !is_number(other) {
        return Err(refused("an operator is used on values that it is not for"));
    }
    if is_float(one) || is_float(other) {
        return Ok(Value::from(float(as_float(one)?, as_float(other)?)));
    }
    let result =
        whole(as_whole(one)?, as_whole(other)?).ok_or_else(|| refused("a number is too large"))?;
    Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from))
}

fn as_whole(value: &Value) -> Result<i128, Error> {
    if value.kind() == ValueKind::Bool {
        Ok(value.is_true().into())
    } else {
        i128::try_from(value.clone())
    }
}

fn as_float(value: &Value) -> Result<f64, Error> {
    if value.kind() == ValueKind::Bool {
        Ok(value.is_true().into())
    } else {
        f64::try_from(value.clone())
    }
}
