//! Conversion of an event's values into the event, field by field.

use super::{
    event::{EventNumber, StandardChange, StandardEvent, StreamKey},
    field::{StandardField, StandardFields},
    field_access::{FieldAccess, missing, wrong},
    value::{LazyValue, Scalar},
};
use crate::EventError;

/// Longest name, bytes: stream dimensions are stored as long as the stream.
const MAX_NAME: usize = 1_024;

/// Longest object key, bytes; it is not stored.
const MAX_OBJECT_KEY: usize = 4_096;

/// Reads an event. An error has the event's number if its own fields are readable: the event is
/// refused, not missing.
pub(super) fn event<V: LazyValue>(fields: &StandardFields<V>) -> Result<StandardEvent, EventError> {
    let access = FieldAccess(fields);
    let number = access.event_number();
    access.event(number.clone()).map_err(|error| EventError {
        // A dimension with two values names no stream.
        number: number
            .ok()
            .filter(|_| fields.twice() > Some(StandardField::DpRank) || fields.twice().is_none())
            .map(Box::new),
        ..error
    })
}

/// Integers that a hash may be.
#[derive(Clone, Copy)]
enum Sign {
    Unsigned,
    /// Negative numbers represent those from 2^63 on.
    Folded,
}

impl<V: LazyValue> FieldAccess<'_, V> {
    fn event(&self, number: Result<EventNumber, EventError>) -> Result<StandardEvent, EventError> {
        if let Some(field) = self.0.twice() {
            return Err(EventError::new(format!(
                "{} occurs twice: expected it once",
                field.name()
            )));
        }
        let object_key = self.text(StandardField::ObjectKey, MAX_OBJECT_KEY)?;
        let EventNumber { stream, event_id } = number?;
        Ok(StandardEvent {
            event_id,
            timestamp_ms: self.timestamp(),
            stream,
            change: self.change(object_key.is_some())?,
            object_key,
        })
    }

    fn event_number(&self) -> Result<EventNumber, EventError> {
        let event_id = self
            .number(StandardField::EventId, u64::MAX)?
            .ok_or_else(|| missing(StandardField::EventId, "its number"))?;
        let stream = StreamKey {
            model: self.text(StandardField::ModelName, MAX_NAME)?,
            block_size: self.block_size()?,
            salt: self.text(StandardField::AdditionalSalt, MAX_NAME)?,
            lora: self.text(StandardField::LoraName, MAX_NAME)?,
            tenant: self.text(StandardField::TenantId, MAX_NAME)?,
            backend_id: self.text(StandardField::BackendId, MAX_NAME)?,
            medium: self.text(StandardField::Medium, MAX_NAME)?,
            dp_rank: self.short(StandardField::DpRank)?,
        };
        Ok(EventNumber { stream, event_id })
    }

    fn change(&self, has_key: bool) -> Result<StandardChange, EventError> {
        let (field, value) = match (
            self.get(StandardField::EventType),
            self.get(StandardField::Type),
        ) {
            (Some(value), _) => (StandardField::EventType, value),
            (None, Some(value)) => (StandardField::Type, value),
            (None, None) => {
                return Err(missing(
                    StandardField::EventType,
                    "stored, removed or cleared",
                ));
            }
        };
        match (field, value.text().as_deref()) {
            (StandardField::EventType, Some("stored"))
            | (StandardField::Type, Some("BlockStored")) => self.stored(has_key),
            (StandardField::EventType, Some("removed"))
            | (StandardField::Type, Some("BlockRemoved")) => Ok(StandardChange::Removed {
                seq_hashes: self.seq_hashes(has_key)?,
                base_block_idx: self.number(StandardField::BaseBlockIdx, u64::MAX)?,
            }),
            (StandardField::EventType, Some("cleared"))
            | (StandardField::Type, Some("AllBlocksCleared")) => Ok(StandardChange::Cleared),
            (StandardField::Type, _) => Err(wrong(
                field,
                value,
                "BlockStored, BlockRemoved or AllBlocksCleared",
            )),
            _ => Err(wrong(field, value, "stored, removed or cleared")),
        }
    }

    fn stored(&self, has_key: bool) -> Result<StandardChange, EventError> {
        let seq_hashes = self.seq_hashes(has_key)?;
        let base_block_idx = self.number(StandardField::BaseBlockIdx, u64::MAX)?;
        let parent_hash = self.parent()?;
        match (base_block_idx, parent_hash) {
            (None, None) => {
                let reason = "base_block_idx and parent_hash are both missing: expected at least one, 0 at the beginning";
                return Err(EventError::new(reason));
            }
            (Some(0), Some(parent)) if parent != 0 => {
                let reason = format!(
                    "base_block_idx is 0 although parent_hash is {parent}: expected null at the beginning"
                );
                return Err(EventError::new(reason));
            }
            _ => {}
        }
        Ok(StandardChange::Stored {
            seq_hashes,
            base_block_idx,
            // At the beginning of a sequence, a parent of 0 means that there is none.
            parent_hash: parent_hash.filter(|_| base_block_idx != Some(0)),
            token_ids: self.tokens()?,
        })
    }

    fn seq_hashes(&self, has_key: bool) -> Result<Vec<u64>, EventError> {
        let (field, sign) = match self.get(StandardField::SeqHashes) {
            Some(_) => (StandardField::SeqHashes, Sign::Unsigned),
            None => (StandardField::BlockHashes, Sign::Folded),
        };
        let Some(value) = self.get(field) else {
            return Err(missing(
                StandardField::SeqHashes,
                "the hashes of the blocks",
            ));
        };
        let hashes = match value.numbers() {
            Some(hashes) => hashes,
            None => {
                let mut hashes = Vec::new();
                let all = value.each(|hash| {
                    hashes.push(number_of_hash(field, hash, sign)?);
                    Ok(())
                });
                all.ok_or_else(|| wrong(field, value, "an array of hashes"))??;
                hashes
            }
        };
        if hashes.is_empty() && !has_key {
            return Err(EventError::new(
                "seq_hashes is empty: expected at least one hash, or an object_key",
            ));
        }
        Ok(hashes)
    }

    fn parent(&self) -> Result<Option<u64>, EventError> {
        let sent = |field, sign| {
            self.get(field)
                .map(|value| number_of_hash(field, value, sign))
                .transpose()
        };
        Ok(sent(StandardField::ParentHash, Sign::Unsigned)?
            .or(sent(StandardField::ParentBlockHash, Sign::Folded)?))
    }

    fn tokens(&self) -> Result<Option<Vec<u32>>, EventError> {
        let field = StandardField::TokenIds;
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        if let Some(tokens) = value.numbers() {
            return Ok(Some(tokens).filter(|tokens: &Vec<u32>| !tokens.is_empty()));
        }
        let mut tokens = Vec::new();
        let all = value.each(|token| {
            let number = match token.scalar() {
                Scalar::Number(number) => u32::try_from(number).ok(),
                _ => None,
            };
            tokens.push(number.ok_or_else(|| wrong(field, token, "token ids, 0 to 4294967295"))?);
            Ok(())
        });
        all.ok_or_else(|| wrong(field, value, "an array of token ids or null"))??;
        Ok(Some(tokens).filter(|tokens| !tokens.is_empty()))
    }
}

fn number_of_hash<V: LazyValue>(
    field: StandardField,
    value: V,
    sign: Sign,
) -> Result<u64, EventError> {
    let number = match (value.scalar(), sign) {
        (Scalar::Digits(number), _) => Some(number),
        (Scalar::Number(number), Sign::Unsigned) => u64::try_from(number).ok(),
        (Scalar::Number(number), Sign::Folded) => u64::try_from(number)
            .ok()
            .or_else(|| i64::try_from(number).ok().map(i64::cast_unsigned)),
        _ => None,
    };
    number.ok_or_else(|| {
        wrong(
            field,
            value,
            "64-bit hashes as whole numbers or decimal text",
        )
    })
}
