//! Time as a value.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A point on the process's monotonic time line, counted from its start.
///
/// Pure code reads no clock: it takes a `Moment` as an argument. The edges read one clock
/// (`net::Clock`); tests and the simulator construct moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// The start of the process.
    pub const START: Self = Self(Duration::ZERO);

    /// Returns the moment this long after the start.
    pub fn at(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// Returns the time since the start.
    pub fn since_start(self) -> Duration {
        self.0
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the milliseconds since `earlier`; zero if `earlier` is later.
    pub fn ms_since(self, earlier: Self) -> f64 {
        self.since(earlier).as_secs_f64() * 1e3
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(length))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(length))
    }
}
