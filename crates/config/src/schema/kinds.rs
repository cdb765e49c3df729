//! Value kinds shared by many keys.

use std::time::Duration;

use super::{KeySchema, Range, ValueKind, WordChoice, key, word};

pub(super) const AUTO: &[WordChoice] = &[word("auto")];
pub(super) const AUTO_OR_OFF: &[WordChoice] = &[word("auto"), word("off")];
pub(super) const PORT: ValueKind = ValueKind::Int {
    min: 1,
    max: 65_535,
};
pub(super) const ANY_PORT: ValueKind = ValueKind::WordOr(
    AUTO,
    &ValueKind::Int {
        min: 0,
        max: 65_535,
    },
);
pub(super) const BLOCK_SIZE: ValueKind = ValueKind::WordOr(
    AUTO,
    &ValueKind::Int {
        min: 1,
        max: 1 << 16,
    },
);
pub(super) const COUNT: ValueKind = ValueKind::Int {
    min: 1,
    max: 1_000_000,
};
pub(super) const ANY_INT: ValueKind = ValueKind::Int {
    min: 0,
    max: u64::MAX,
};
pub(super) const RATIO: ValueKind = ValueKind::Float(Range {
    min: 0.0,
    max: 1.0,
    open: false,
});
pub(super) const STATUS: ValueKind = ValueKind::Int { min: 100, max: 599 };
pub(super) const SECONDS: ValueKind = ValueKind::Duration {
    least: Duration::from_millis(1),
};
pub(super) const SECONDS_OR_ZERO: ValueKind = ValueKind::Duration {
    least: Duration::ZERO,
};
/// Pause between repetitions: a shorter one would be a busy loop.
pub(super) const PAUSE: ValueKind = ValueKind::Duration {
    least: Duration::from_millis(10),
};

pub(super) const fn size(min: u64, max: u64) -> ValueKind {
    ValueKind::Size { min, max }
}

pub(super) const fn section(
    name: &'static str,
    keys: &'static [KeySchema],
    doc: &'static str,
) -> KeySchema {
    key(name, ValueKind::Section(keys), "", doc)
}
