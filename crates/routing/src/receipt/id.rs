//! Ids of receipts.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
};

/// A receipt's id: 16 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DecisionId(pub u64);

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// An invalid decision id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "decision id {0:?} is not valid: expected 16 lower-case hex digits, as in the x-warmroute-decision header"
)]
pub struct DecisionIdError(pub String);

impl FromStr for DecisionId {
    type Err = DecisionIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.len() == 16
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        plain
            .then(|| u64::from_str_radix(text, 16).ok())
            .flatten()
            .map(Self)
            .ok_or_else(|| DecisionIdError(text.chars().take(64).collect()))
    }
}

/// Generates decision ids: the upper half of a number drawn at start, then a counter. Ids are
/// unique.
#[derive(Debug)]
pub struct DecisionIds(AtomicU64);

impl DecisionIds {
    /// Creates a generator that starts at `seed`, a random number.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed & !0xffff_ffff))
    }

    /// Returns the next id.
    pub fn next_id(&self) -> DecisionId {
        DecisionId(self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
}
