//! How long each test of a program ran, from the order in which results come.
//!
//! The test harness tells when a test ends, not when it begins. It begins them by name, as many at a time as it has
//! threads: each end is the beginning of the next one.

use std::{
    env, thread,
    time::{Duration, Instant},
};

use crate::test_log;

/// The results of a running program, each with its time.
#[derive(Debug, Default)]
pub(super) struct TestDurations {
    started: Option<Instant>,
    ended: Vec<(String, Instant)>,
}

impl TestDurations {
    /// Reads a line of the program's output.
    pub(super) fn read(&mut self, line: &str, now: Instant) {
        let line = line.trim_end();
        if line.starts_with("running ") && self.started.is_none() {
            self.started = Some(now);
        } else if let Some((name, _)) = test_log::result(line) {
            self.ended.push((name.to_owned(), now));
        }
    }

    /// Tests by name, with their durations; `threads`: how many run at a time.
    pub(super) fn by_name(&self, threads: usize) -> Vec<(&str, Duration)> {
        let Some(started) = self.started else {
            return Vec::new();
        };
        let mut tests: Vec<_> = self.ended.iter().collect();
        tests.sort();
        // The first tests have nobody to wait for.
        let begun = (0..threads)
            .map(|_| started)
            .chain(self.ended.iter().map(|(_, end)| *end));
        tests
            .into_iter()
            .zip(begun)
            .map(|((name, end), begun)| (name.as_str(), end.saturating_duration_since(begun)))
            .collect()
    }
}

/// How many tests the harness runs at a time, given the arguments of its program.
pub(super) fn threads(arguments: &[String]) -> usize {
    let flag = arguments.iter().enumerate().find_map(|(at, argument)| {
        let value = argument.strip_prefix("--test-threads")?;
        match value.strip_prefix('=') {
            Some(value) => Some(value),
            None => arguments.get(at + 1).map(String::as_str),
        }
    });
    let variable = env::var("RUST_TEST_THREADS").ok();
    flag.or(variable.as_deref())
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "any moment will do")]
    fn a_test_begins_when_one_before_it_ends() {
        let start = Instant::now();
        let mut durations = TestDurations::default();
        for (second, line) in [
            (1, "running 4 tests\n"),
            (3, "test b ... ok\n"),
            (3, "test c - should panic ... ok\n"),
            (3, "test z has been running for over 60 seconds\n"),
            (8, "test d ... FAILED\n"),
            (9, "test a ... ok\n"),
            (9, "test result: FAILED. 3 passed; 1 failed\n"),
        ] {
            durations.read(line, start + Duration::from_secs(second));
        }
        // Two threads: a and b begin at once, c when b ends, d when c does.
        let seconds: Vec<_> = durations
            .by_name(2)
            .into_iter()
            .map(|(name, duration)| (name, duration.as_secs()))
            .collect();
        assert_eq!(seconds, [("a", 8), ("b", 2), ("c", 0), ("d", 5)]);
        assert_eq!(TestDurations::default().by_name(2), []);
    }

    #[test]
    fn an_argument_sets_the_number_of_threads() {
        for arguments in [&["x", "--test-threads", "7"][..], &["--test-threads=7"]] {
            let arguments: Vec<_> = arguments.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(threads(&arguments), 7);
        }
        assert!(threads(&[]) >= 1);
    }
}
