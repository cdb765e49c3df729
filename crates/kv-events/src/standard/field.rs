//! The names on the wire, and an event cut into the values behind them.

/// Everything an event may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
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

const FIELDS: [(&str, Field); 19] = [
    ("event_id", Field::EventId),
    ("timestamp", Field::Timestamp),
    ("event_type", Field::EventType),
    ("model_name", Field::ModelName),
    ("block_size", Field::BlockSize),
    ("additional_salt", Field::AdditionalSalt),
    ("lora_name", Field::LoraName),
    ("tenant_id", Field::TenantId),
    ("backend_id", Field::BackendId),
    ("medium", Field::Medium),
    ("dp_rank", Field::DpRank),
    ("seq_hashes", Field::SeqHashes),
    ("base_block_idx", Field::BaseBlockIdx),
    ("parent_hash", Field::ParentHash),
    ("token_ids", Field::TokenIds),
    ("object_key", Field::ObjectKey),
    ("type", Field::Type),
    ("block_hashes", Field::BlockHashes),
    ("parent_block_hash", Field::ParentBlockHash),
];

impl Field {
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
pub(super) struct Fields<V> {
    values: [Option<V>; FIELDS.len()],
    twice: Option<Field>,
}

impl<V: Copy> Fields<V> {
    pub(super) fn new() -> Self {
        Self {
            values: [None; FIELDS.len()],
            twice: None,
        }
    }

    /// Takes a value under the name it was sent with; unknown names are skipped.
    pub(super) fn put(&mut self, name: &[u8], value: V) {
        if let Some(field) = Field::named(name)
            && self.values[field as usize].replace(value).is_some()
        {
            self.twice = Some(field);
        }
    }

    pub(super) fn get(&self, field: Field) -> Option<V> {
        self.values[field as usize]
    }

    /// A field that was sent twice.
    pub(super) fn twice(&self) -> Option<Field> {
        self.twice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_finds_its_own_name() {
        for (at, (name, field)) in FIELDS.iter().enumerate() {
            assert_eq!(
                (*field as usize, field.name(), Field::named(name.as_bytes())),
                (at, *name, Some(*field))
            );
        }
    }
}
