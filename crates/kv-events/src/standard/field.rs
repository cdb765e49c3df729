//! The field names on the wire, and the split of an event into its values.

/// The fields of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StandardField {
    EventId,
    Timestamp,
    EventType,
    ModelName,
    BlockSize,
    AdditionalSalt,
    LoraName,
    TenantId,
    BackendId,
    Medium,
    DpRank,
    SeqHashes,
    BaseBlockIdx,
    ParentHash,
    TokenIds,
    ObjectKey,
    /// The older name of `event_type`.
    Type,
    /// The older name of `seq_hashes`: signed.
    BlockHashes,
    /// The older name of `parent_hash`: signed.
    ParentBlockHash,
}

const FIELDS: [(&str, StandardField); 19] = [
    ("event_id", StandardField::EventId),
    ("timestamp", StandardField::Timestamp),
    ("event_type", StandardField::EventType),
    ("model_name", StandardField::ModelName),
    ("block_size", StandardField::BlockSize),
    ("additional_salt", StandardField::AdditionalSalt),
    ("lora_name", StandardField::LoraName),
    ("tenant_id", StandardField::TenantId),
    ("backend_id", StandardField::BackendId),
    ("medium", StandardField::Medium),
    ("dp_rank", StandardField::DpRank),
    ("seq_hashes", StandardField::SeqHashes),
    ("base_block_idx", StandardField::BaseBlockIdx),
    ("parent_hash", StandardField::ParentHash),
    ("token_ids", StandardField::TokenIds),
    ("object_key", StandardField::ObjectKey),
    ("type", StandardField::Type),
    ("block_hashes", StandardField::BlockHashes),
    ("parent_block_hash", StandardField::ParentBlockHash),
];

impl StandardField {
    pub(super) fn name(self) -> &'static str {
        FIELDS[self as usize].0
    }

    fn named(name: &[u8]) -> Option<Self> {
        FIELDS
            .iter()
            .find(|(known, _)| known.as_bytes() == name)
            .map(|(_, field)| *field)
    }
}

/// The undecoded values of one event.
#[derive(Clone, Copy, Debug)]
pub(super) struct StandardFields<V> {
    values: [Option<V>; FIELDS.len()],
    twice: Option<StandardField>,
}

impl<V: Copy> StandardFields<V> {
    pub(super) fn new() -> Self {
        Self {
            values: [None; FIELDS.len()],
            twice: None,
        }
    }

    /// Stores a value under its sent name; unknown names are skipped.
    pub(super) fn put(&mut self, name: &[u8], value: V) {
        if let Some(field) = StandardField::named(name)
            && self.values[field as usize].replace(value).is_some()
        {
            self.twice = Some(field);
        }
    }

    pub(super) fn get(&self, field: StandardField) -> Option<V> {
        self.values[field as usize]
    }

    /// Returns a field that was sent twice.
    pub(super) fn twice(&self) -> Option<StandardField> {
        self.twice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_by_its_name() {
        for (at, (name, field)) in FIELDS.iter().enumerate() {
            assert_eq!(
                (
                    *field as usize,
                    field.name(),
                    StandardField::named(name.as_bytes())
                ),
                (at, *name, Some(*field))
            );
        }
    }
}
