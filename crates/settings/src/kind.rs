//! Kinds of values: what a key takes, as data.

use std::time::Duration;

use crate::{KeySchema, WordChoice};

/// Values that a key takes.
#[derive(Clone, Copy, Debug)]
pub enum ValueKind {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Int {
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
    /// A whole number of a unit that the key's name states, or a duration.
    Counted {
        /// Unit of a bare number.
        unit: Unit,
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
    /// A number.
    Float(Range),
    /// A duration; a bare number counts seconds.
    Duration {
        /// Shortest duration.
        least: Duration,
    },
    /// A number of bytes.
    Size {
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
    /// Any text on one line.
    Text,
    /// A path on this machine.
    Path,
    /// The name of an HTTP header.
    HeaderName,
    /// The path part of a URL, from its `/` on.
    UrlPath,
    /// `tcp://host:port` or `ipc://path`.
    Endpoint,
    /// Where a stream of events is, with one of these schemes.
    Stream(&'static [&'static str]),
    /// A worker's base URL.
    WorkerUrl,
    /// An address to listen on.
    Listen,
    /// An IP address, or a range of them.
    AddressRange,
    /// The origin of web pages.
    WebOrigin,
    /// A text that is never shown.
    Secret,
    /// Where a Redis server is; shown without its user and password.
    RedisUrl,
    /// A text that begins the keys of a store: no pattern.
    KeyPrefix {
        /// Longest text, bytes.
        max: usize,
    },
    /// One of some words.
    Word(&'static [WordChoice]),
    /// One of some words, or a value of the kind.
    WordOr(&'static [WordChoice], &'static ValueKind),
    /// Any value.
    Free,
    /// A list of values of the kind.
    List(&'static ValueKind),
    /// Names of the user's choice, each with a value of the kind.
    Map(&'static ValueKind),
    /// A section with these keys.
    Section(&'static [KeySchema]),
    /// A section, or `[NAME=]URL` in its place.
    Worker(&'static [KeySchema]),
}

impl ValueKind {
    /// Returns whether a value of this kind is secret or has a secret in it. What stands in place of
    /// an entry with a key may be that key.
    pub fn may_hold_secret(&self) -> bool {
        match self {
            Self::Secret | Self::RedisUrl => true,
            Self::List(item) | Self::Map(item) | Self::WordOr(_, item) => item.may_hold_secret(),
            Self::Section(keys) => has_secret(keys),
            _ => false,
        }
    }
}

/// Returns whether one of the keys is of a secret, not counting those of sections in it.
fn has_secret(keys: &[KeySchema]) -> bool {
    let is_secret = |key: &KeySchema| matches!(key.kind, ValueKind::Secret | ValueKind::RedisUrl);
    keys.iter().any(is_secret)
}

/// Unit of a bare number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Thousandths of a second.
    Milliseconds,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// Returns the unit's sign.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
        }
    }

    /// Returns the duration of this many units.
    pub fn duration(self, count: u64) -> Duration {
        match self {
            Self::Milliseconds => Duration::from_millis(count),
            Self::Seconds => Duration::from_secs(count),
        }
    }

    /// Converts a duration that is a whole number of units to that number.
    pub fn count(self, duration: Duration) -> Option<u64> {
        let micros = match self {
            Self::Milliseconds => 1_000,
            Self::Seconds => 1_000_000,
        };
        let whole = duration.as_micros();
        whole
            .is_multiple_of(micros)
            .then(|| u64::try_from(whole / micros).ok())
            .flatten()
    }
}

/// A range of numbers; both ends belong to it, except `min` when `open`.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Lower end.
    pub min: f64,
    /// Upper end.
    pub max: f64,
    /// Whether the lower end is excluded.
    pub open: bool,
}

impl Range {
    /// Returns whether a number is in the range.
    pub fn holds(self, value: f64) -> bool {
        value.is_finite()
            && value <= self.max
            && if self.open {
                value > self.min
            } else {
                value >= self.min
            }
    }
}
