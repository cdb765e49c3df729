//! Value kinds shared by many keys.

use std::time::Duration;

use crate::{Range, Unit, ValueKind, WordChoice, word};

/// The word `auto`.
pub const AUTO: &[WordChoice] = &[word("auto")];
/// The words `auto` and `off`.
pub const AUTO_OR_OFF: &[WordChoice] = &[word("auto"), word("off")];
/// A port.
pub const PORT: ValueKind = ValueKind::Int {
    min: 1,
    max: 65_535,
};
/// A port, 0 for any free one, or `auto`.
pub const ANY_PORT: ValueKind = ValueKind::WordOr(
    AUTO,
    &ValueKind::Int {
        min: 0,
        max: 65_535,
    },
);
/// Tokens of a block, or `auto`.
pub const BLOCK_SIZE: ValueKind = ValueKind::WordOr(
    AUTO,
    &ValueKind::Int {
        min: 1,
        max: 1 << 16,
    },
);
/// At least one of something.
pub const COUNT: ValueKind = ValueKind::Int {
    min: 1,
    max: 1_000_000,
};
/// Any whole number.
pub const ANY_INT: ValueKind = ValueKind::Int {
    min: 0,
    max: u64::MAX,
};
/// A share.
pub const RATIO: ValueKind = ValueKind::Float(Range {
    min: 0.0,
    max: 1.0,
    open: false,
});
/// An HTTP status.
pub const STATUS: ValueKind = ValueKind::Int { min: 100, max: 599 };
/// A duration above zero.
pub const SECONDS: ValueKind = ValueKind::Duration {
    least: Duration::from_millis(1),
};
/// A duration.
pub const SECONDS_OR_ZERO: ValueKind = ValueKind::Duration {
    least: Duration::ZERO,
};
/// Pause between repetitions: a shorter one would be a busy loop.
pub const PAUSE: ValueKind = ValueKind::Duration {
    least: Duration::from_millis(10),
};

/// Returns a range of sizes.
pub const fn size(min: u64, max: u64) -> ValueKind {
    ValueKind::Size { min, max }
}

/// Returns a range of whole numbers.
pub const fn int(min: u64, max: u64) -> ValueKind {
    ValueKind::Int { min, max }
}

/// Returns a range of numbers with both ends.
pub const fn float(min: f64, max: f64) -> ValueKind {
    ValueKind::Float(Range {
        min,
        max,
        open: false,
    })
}

/// Returns a number of seconds in a range, or a duration.
pub const fn seconds(min: u64, max: u64) -> ValueKind {
    ValueKind::Counted {
        unit: Unit::Seconds,
        min,
        max,
    }
}

/// Returns a number of milliseconds in a range, or a duration.
pub const fn milliseconds(min: u64, max: u64) -> ValueKind {
    ValueKind::Counted {
        unit: Unit::Milliseconds,
        min,
        max,
    }
}
