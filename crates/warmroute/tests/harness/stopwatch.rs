//! Real time, for deadlines and for printed figures.
#![allow(clippy::disallowed_methods, reason = "a test's deadline is real time")]

use std::time::{Duration, Instant};

/// Longest wait for something that is certain to come; only a failing test takes it.
pub const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// A time measurement.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// The time from this moment to `later`.
    pub fn until(self, later: Self) -> Duration {
        later.0.saturating_duration_since(self.0)
    }
}

/// Waits until `check` returns a value; fails with the name of the expected event.
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let waiting = Stopwatch::start();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(
            waiting.elapsed() < LONGEST_WAIT,
            "waited {LONGEST_WAIT:?} for {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}
