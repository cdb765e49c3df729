//! Reads single fields of an event.

use std::sync::Arc;

use kv_blocks::BlockSize;

use super::{
    field::{StandardField, StandardFields},
    value::{LazyValue, Scalar},
};
use crate::EventError;

pub(super) fn missing(field: StandardField, expected: &str) -> EventError {
    EventError::new(format!("{} is missing: expected {expected}", field.name()))
}

pub(super) fn wrong<V: LazyValue>(field: StandardField, value: V, expected: &str) -> EventError {
    EventError::new(format!(
        "{} is {}: expected {expected}",
        field.name(),
        value.show()
    ))
}

/// The fields of an event, each read with its form and limits.
pub(super) struct FieldAccess<'f, V>(pub(super) &'f StandardFields<V>);

impl<V: LazyValue> FieldAccess<'_, V> {
    /// Returns the value of a field; null counts as absent.
    pub(super) fn get(&self, field: StandardField) -> Option<V> {
        self.0
            .get(field)
            .filter(|value| value.scalar() != Scalar::Nil)
    }

    pub(super) fn number(
        &self,
        field: StandardField,
        most: u64,
    ) -> Result<Option<u64>, EventError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        match value.scalar() {
            Scalar::Number(number) => match u64::try_from(number) {
                Ok(number) if number <= most => Ok(Some(number)),
                _ => Err(wrong(field, value, &format!("0 to {most}"))),
            },
            _ => Err(wrong(field, value, "a whole number")),
        }
    }

    pub(super) fn short(&self, field: StandardField) -> Result<Option<u32>, EventError> {
        let number = self.number(field, u32::MAX.into())?;
        Ok(number.and_then(|number| u32::try_from(number).ok()))
    }

    pub(super) fn block_size(&self) -> Result<Option<u32>, EventError> {
        let Some(tokens) = self.number(StandardField::BlockSize, u64::MAX)? else {
            return Ok(None);
        };
        BlockSize::new(tokens)
            .map(|size| Some(size.tokens()))
            .map_err(|error| EventError::new(error.to_string()))
    }

    /// Returns the timestamp. It is informational, so an unusable one is ignored.
    pub(super) fn timestamp(&self) -> Option<i64> {
        match self.get(StandardField::Timestamp)?.scalar() {
            Scalar::Number(number) => i64::try_from(number).ok(),
            _ => None,
        }
    }

    pub(super) fn text(
        &self,
        field: StandardField,
        most: usize,
    ) -> Result<Option<Arc<str>>, EventError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let text = value
            .text()
            .ok_or_else(|| wrong(field, value, "a text or null"))?;
        if text.len() > most {
            let reason = format!(
                "{} has {} bytes: expected at most {most}",
                field.name(),
                text.len()
            );
            return Err(EventError::new(reason));
        }
        Ok(Some(text).filter(|text| !text.is_empty()))
    }
}
