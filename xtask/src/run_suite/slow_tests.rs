//! The tests of a running program that the test harness reported as slow and that have not ended.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

/// The test harness reports a test after this time: `test a::b has been running for over 60
/// seconds`.
const NAMED_AFTER: Duration = Duration::from_secs(60);

/// By name, the time of each report.
#[derive(Debug, Default)]
pub(super) struct SlowTests(BTreeMap<String, Instant>);

impl SlowTests {
    /// Reads a line of the program's output.
    pub(super) fn read(&mut self, line: &str, now: Instant) {
        let Some(said) = line.split_once("test ").map(|(_, said)| said) else {
            return;
        };
        if let Some((name, _)) = said.split_once(" has been running for over ") {
            self.0.insert(name.to_owned(), now);
        } else if let Some((name, _)) = said.split_once(" ... ") {
            self.0.remove(name);
        }
    }

    /// Returns a test that has run for longer than `limit`.
    pub(super) fn longer_than(&self, limit: Duration, now: Instant) -> Option<&str> {
        let over = |named: &Instant| now.duration_since(*named) + NAMED_AFTER > limit;
        self.0
            .iter()
            .find(|(_, named)| over(named))
            .map(|(name, _)| name.as_str())
    }
}

impl fmt::Display for SlowTests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        f.write_str(
            &self
                .0
                .keys()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", "),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "any moment will do")]
    fn a_reported_test_is_slow_until_its_result() {
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let limit = Duration::from_secs(100);
        let mut slow = SlowTests::default();
        slow.read("test a::b has been running for over 60 seconds\n", start);
        slow.read("test c has been running for over 60 seconds\n", later(10));
        slow.read("test d ... ok\n", later(20));
        assert_eq!(
            (
                slow.longer_than(limit, later(39)),
                slow.to_string().as_str()
            ),
            (None, "a::b, c")
        );
        assert_eq!(slow.longer_than(limit, later(41)), Some("a::b"));
        slow.read("test a::b ... FAILED\n", later(42));
        assert_eq!(slow.longer_than(limit, later(43)), None);
        assert_eq!(slow.longer_than(limit, later(51)), Some("c"));
        slow.read("test c ... ok\n", later(52));
        assert_eq!(
            (
                slow.longer_than(limit, later(500)),
                slow.to_string().as_str()
            ),
            (None, "none")
        );
    }
}
