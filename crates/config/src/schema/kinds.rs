//! Kinds of values that many keys share.

use std::time::Duration;

use super::{Choice, Key, Kind, Range, key, word};

pub(super) const AUTO: &[Choice] = &[word("auto")];
pub(super) const AUTO_OR_OFF: &[Choice] = &[word("auto"), word("off")];
pub(super) const PORT: Kind = Kind::Int {
    min: 1,
    max: 65_535,
};
pub(super) const ANY_PORT: Kind = Kind::WordOr(
    AUTO,
    &Kind::Int {
        min: 0,
        max: 65_535,
    },
);
pub(super) const BLOCK_SIZE: Kind = Kind::WordOr(
    AUTO,
    &Kind::Int {
        min: 1,
        max: 1 << 16,
    },
);
pub(super) const COUNT: Kind = Kind::Int {
    min: 1,
    max: 1_000_000,
};
pub(super) const ANY_INT: Kind = Kind::Int {
    min: 0,
    max: u64::MAX,
};
pub(super) const RATIO: Kind = Kind::Float(Range {
    min: 0.0,
    max: 1.0,
    open: false,
});
pub(super) const STATUS: Kind = Kind::Int { min: 100, max: 599 };
pub(super) const SECONDS: Kind = Kind::Duration {
    least: Duration::from_millis(1),
};
pub(super) const SECONDS_OR_ZERO: Kind = Kind::Duration {
    least: Duration::ZERO,
};
/// For what repeats: shorter pauses would be a busy loop.
pub(super) const PAUSE: Kind = Kind::Duration {
    least: Duration::from_millis(10),
};

pub(super) const fn size(min: u64, max: u64) -> Kind {
    Kind::Size { min, max }
}

pub(super) const fn section(name: &'static str, keys: &'static [Key], doc: &'static str) -> Key {
    key(name, Kind::Section(keys), "", doc)
}
