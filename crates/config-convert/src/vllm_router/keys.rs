//! Mappings of single keys, and the kinds of their values.

use settings::{
    MAX_DURATION, ValueKind,
    kinds::{float, int},
};

/// Mapping of a simple key.
pub(super) struct KeyMapping {
    pub(super) theirs: &'static str,
    /// Path of our key; in an entry of a list, its name.
    pub(super) ours: &'static str,
    pub(super) kind: ValueKind,
    /// Unit behind the number in ours.
    pub(super) unit: &'static str,
    /// That router's default, written out because ours may differ; `None` = leave it out.
    pub(super) default: Option<&'static str>,
}

pub(super) const fn key(theirs: &'static str, ours: &'static str, kind: ValueKind) -> KeyMapping {
    KeyMapping {
        theirs,
        ours,
        kind,
        unit: "",
        default: None,
    }
}

impl KeyMapping {
    pub(super) const fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    pub(super) const fn or(self, default: &'static str) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }
}

pub(super) const SECONDS: ValueKind = int(1, MAX_DURATION.as_secs());
pub(super) const SECONDS_OR_ZERO: ValueKind = int(0, MAX_DURATION.as_secs());
pub(super) const MILLISECONDS: ValueKind = int(1, MAX_DURATION.as_secs() * 1_000);
pub(super) const MILLISECONDS_OR_ZERO: ValueKind = int(0, MAX_DURATION.as_secs() * 1_000);
pub(super) const COUNT: ValueKind = int(1, 1_000_000);
pub(super) const SIZE: ValueKind = int(1, u32::MAX as u64);
pub(super) const TOKENS_OF_A_BLOCK: ValueKind = int(1, 1 << 16);
pub(super) const SHARE: ValueKind = float(0.0, 1.0);
