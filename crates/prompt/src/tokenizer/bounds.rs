//! Bounds of what a file has, as errors of its reader.

use std::collections::HashSet;

use serde::de::Error;

pub(super) fn limit<E: Error>(what: &str, found: usize, most: usize, unit: &str) -> Result<(), E> {
    if found > most {
        Err(E::custom(format!(
            "{what} {found} {unit}, expected at most {most}"
        )))
    } else {
        Ok(())
    }
}

/// Rejects a duplicate key: two parsers may use different ones of the two.
pub(super) fn once<E: Error>(seen: &mut HashSet<String>, key: &str) -> Result<(), E> {
    limit("an object has", seen.len(), 64, "keys")?;
    if seen.insert(key.to_owned()) {
        Ok(())
    } else {
        Err(E::custom(format!("the key {key:?} is there twice")))
    }
}
