//! The memory and work budget of one render.
//!
//! The template engine counts instructions, not their cost: one instruction may double a string,
//! compare two long ones or walk a structure that shares its parts. Every operation of a template
//! that reads or creates a value of no fixed size is charged here by its bytes, before it runs.
//! [`super::rewrite`] inserts the charges.
//!
//! **Invariant**: a render touches at most a small multiple of its budget in bytes, and so
//! allocates no more either.

use std::cell::Cell;

use minijinja::{
    Error, ErrorKind,
    value::{Value, ValueKind},
};

use crate::cancel;

/// Bytes charged for a value beside its text: about its size in a list.
pub(super) const NODE: usize = 32;

/// Maximum nesting of containers; JSON input is shallower. Values are dropped and printed
/// recursively.
pub(super) const MAX_DEPTH: usize = 160;

thread_local! {
    /// Remaining bytes of the render on this thread; 0 outside a render.
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Runs a render with a budget of bytes.
pub(super) fn with_budget<T>(bytes: usize, render: impl FnOnce() -> T) -> T {
    struct RestoreMeter(usize);
    impl Drop for RestoreMeter {
        fn drop(&mut self) {
            LEFT.set(self.0);
        }
    }
    let _restore = RestoreMeter(LEFT.replace(bytes));
    render()
}

/// Takes bytes from the budget.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    let Some(left) = LEFT.get().checked_sub(bytes) else {
        LEFT.set(0);
        return Err(Error::new(
            ErrorKind::OutOfFuel,
            "the template handles more text than a render may",
        ));
    };
    LEFT.set(left);
    if cancel::is_cancelled() {
        return Err(Error::new(
            ErrorKind::OutOfFuel,
            "nobody waits for the render any more",
        ));
    }
    Ok(())
}

/// Charges an operation that reads a text's letters or a container's items once.
pub(super) fn charge_items(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => charge(text.len()),
        None => charge(NODE.saturating_mul(value.len().unwrap_or(1))),
    }
}

/// Charges the printing of a value.
pub(super) fn charge_text(value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => charge(text.len()),
        None => charge_deep(value),
    }
}

/// Charges an operation that reads everything in a value.
pub(super) fn charge_deep(value: &Value) -> Result<(), Error> {
    walk(value, 0, &mut |value| {
        charge(NODE + value.as_str().map_or(0, str::len))
    })
}

/// Charges [`charge_deep`] several times, as sorting requires.
pub(super) fn charge_sort(value: &Value) -> Result<(), Error> {
    /// Comparisons per item in a list of 100,000.
    const COMPARISONS: usize = 17;
    let before = LEFT.get();
    charge_deep(value)?;
    charge((before - LEFT.get()).saturating_mul(COMPARISONS))
}

/// Charges a comparison. It ends with the shorter operand.
pub(super) fn charge_comparison(one: &Value, other: &Value) -> Result<(), Error> {
    match (one.as_str(), other.as_str()) {
        (Some(one), Some(other)) => charge(one.len().min(other.len())),
        (None, None) if is_container(one) && is_container(other) => charge_deep(one),
        _ => Ok(()),
    }
}

/// Charges a new value, and makes a list of a lazy sequence: lazy ones can be nested without end,
/// and are then walked without a charge.
pub(super) fn charge_result(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        charge_items(&value)?;
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        charge(NODE)?;
        items.push(item);
    }
    Ok(Value::from(items))
}

/// Checks a value that is put into a container or a namespace: data of limited depth. A namespace
/// inside another one, or a macro that sees it, could form a cycle that is never freed.
pub(super) fn check_nesting(value: &Value) -> Result<(), Error> {
    if !is_container(value) && value.as_object().is_none() {
        return Ok(());
    }
    // The container itself is one level.
    walk(value, 1, &mut |value| {
        charge(NODE)?;
        let is_data = value.as_object().is_none_or(|object| {
            is_container(value) && !object.type_name().ends_with("::Namespace")
        });
        if is_data {
            Ok(())
        } else {
            Err(refused("only data can be put into a container"))
        }
    })
}

pub(super) fn is_container(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable
    )
}

pub(super) fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

fn walk(
    value: &Value,
    depth: usize,
    visit: &mut dyn FnMut(&Value) -> Result<(), Error>,
) -> Result<(), Error> {
    visit(value)?;
    if !is_container(value) {
        return Ok(());
    }
    if depth >= MAX_DEPTH {
        return Err(Error::new(ErrorKind::BadSerialization, "nested too deep"));
    }
    let is_map = value.kind() == ValueKind::Map;
    for item in value.try_iter()? {
        walk(&item, depth + 1, visit)?;
        if is_map {
            walk(&value.get_item(&item)?, depth + 1, visit)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_bounded_and_belongs_to_one_render() {
        assert!(charge(1).is_err(), "outside of a render");
        with_budget(10, || {
            assert!(charge(6).is_ok());
            with_budget(100, || assert!(charge(50).is_ok()));
            assert!(charge(4).is_ok());
            assert!(charge(1).is_err());
        });
    }

    #[test]
    fn a_shared_part_of_a_structure_is_charged_at_each_visit() {
        let mut value = Value::from(vec![Value::from("x")]);
        for _ in 0..40 {
            value = Value::from(vec![value.clone(), value]);
        }
        with_budget(1 << 20, || {
            assert!(charge_deep(&value).is_err());
            assert!(charge_comparison(&value, &value).is_err());
        });
        with_budget(1 << 20, || assert!(charge_items(&value).is_ok()));
    }
}
