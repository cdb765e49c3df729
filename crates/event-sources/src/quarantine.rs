//! Quarantine of a publisher that sends too many decode errors.

use std::{collections::VecDeque, time::Duration};

use kv_blocks::Moment;

/// Errors within [`WINDOW`] that start a quarantine.
const ERRORS: usize = 100;
/// Time within which [`ERRORS`] errors start a quarantine.
const WINDOW: Duration = Duration::from_secs(10);
/// Length of a quarantine.
const SENTENCE: Duration = Duration::from_secs(60);

/// Recent decode errors, and the quarantine that they started.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    /// Times of recent errors, at most [`ERRORS`].
    errors: VecDeque<Moment>,
    until: Option<Moment>,
}

impl Quarantine {
    /// Records errors. `Some(end)`: the stream is quarantined until then, and the error count
    /// starts anew.
    pub(crate) fn record(&mut self, now: Moment, errors: u64) -> Option<Moment> {
        for _ in 0..errors.min(ERRORS as u64) {
            if self.errors.len() == ERRORS {
                self.errors.pop_front();
            }
            self.errors.push_back(now);
        }
        let oldest = self
            .errors
            .front()
            .filter(|_| self.errors.len() == ERRORS)?;
        if now.since(*oldest) > WINDOW {
            return None;
        }
        self.errors.clear();
        self.until = Some(now + SENTENCE);
        self.until
    }

    /// Returns the end of the running quarantine.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.until
    }

    pub(crate) fn is_active(&self) -> bool {
        self.until.is_some()
    }

    /// Ends the quarantine.
    pub(crate) fn lift(&mut self) {
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    fn a_hundred_errors_in_ten_seconds_quarantine_for_a_minute() {
        let mut quarantine = Quarantine::default();
        assert_eq!(quarantine.record(at(0), 60), None);
        assert_eq!(quarantine.record(at(9), 39), None);
        assert_eq!(quarantine.record(at(10), 1), Some(at(70)));
        assert_eq!(
            quarantine.record(at(70), 99),
            None,
            "the count restarts afterwards"
        );
    }

    #[test]
    fn errors_spread_over_a_longer_time_do_not_quarantine() {
        let mut quarantine = Quarantine::default();
        for second in 0..1000 {
            assert_eq!(quarantine.record(at(second), 9), None, "at second {second}");
        }
    }

    #[test]
    fn one_batch_with_enough_errors_quarantines() {
        assert_eq!(Quarantine::default().record(at(5), u64::MAX), Some(at(65)));
    }
}
