//! Real time, for deadlines and for the figures that tests print.
#![allow(clippy::disallowed_methods, reason = "a test's deadline is real time")]

use std::time::{Duration, Instant};

/// How long something took.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// From this moment to `later`.
    pub fn until(self, later: Self) -> Duration {
        later.0.saturating_duration_since(self.0)
    }
}

/// Waits until `check` gives a value, or fails with what was waited for.
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let waiting = Stopwatch::start();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(
            waiting.elapsed() < Duration::from_secs(20),
            "waited 20 s for {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}
