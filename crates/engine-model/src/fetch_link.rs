//! The connection over which an engine reads blocks from others.

use std::time::Duration;

/// The connection of each engine to the others. It carries one read at a time, in or out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FetchLink {
    /// Its speed, in 10^9 bytes per second; above 0.
    pub gb_per_s: f64,
    /// Time of a read besides that on the connection.
    pub floor: Duration,
}

impl FetchLink {
    /// Bytes of a token's keys and values: those of a model of 8 billion parameters.
    pub const TOKEN_BYTES: f64 = 131_072.0;
    /// Longest time of one read on the connection.
    pub const LONGEST: Duration = Duration::from_secs(3600);

    /// Returns the time that so many tokens take on the connection.
    pub fn transfer(self, tokens: u64) -> Duration {
        let seconds = tokens as f64 * Self::TOKEN_BYTES / (self.gb_per_s * 1e9);
        Self::bounded(seconds)
    }

    /// Returns a time in seconds as one of a read: at most [`FetchLink::LONGEST`], also if it is no
    /// number.
    pub fn bounded(seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds).map_or(Self::LONGEST, |time| time.min(Self::LONGEST))
    }
}
