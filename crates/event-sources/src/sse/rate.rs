//! The message rate of the last minute.

use kv_blocks::Moment;

/// Buckets of the minute.
const PARTS: usize = 12;
const PART_SECONDS: u64 = 5;

/// Counts messages by arrival time, in twelve buckets of five seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageRate {
    parts: [u64; PARTS],
    /// The newest bucket with a message.
    newest: u64,
}

impl MessageRate {
    /// Counts a message.
    pub(crate) fn record(&mut self, now: Moment) {
        let part = part(now).max(self.newest);
        for passed in (self.newest + 1..=part).rev().take(PARTS) {
            self.parts[part_index(passed)] = 0;
        }
        self.newest = part;
        self.parts[part_index(part)] += 1;
    }

    /// Returns the messages per second over the last minute (those of its first five seconds count
    /// as long as a part of their bucket lies within it).
    pub(crate) fn per_second(&self, now: Moment) -> f64 {
        let part = part(now).max(self.newest);
        let within = (0..PARTS as u64)
            .filter_map(|ago| part.checked_sub(ago))
            .filter(|part| *part <= self.newest);
        // A bucket that was not reused since is at most a minute older than the newest.
        let sum: u64 = within
            .filter(|part| self.newest - part < PARTS as u64)
            .map(|part| self.parts[part_index(part)])
            .sum();
        sum as f64 / (PARTS as u64 * PART_SECONDS) as f64
    }
}

fn part(now: Moment) -> u64 {
    now.since_start().as_secs() / PART_SECONDS
}

fn part_index(part: u64) -> usize {
    usize::try_from(part % PARTS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    fn messages_count_for_one_minute() {
        let mut rate = MessageRate::default();
        assert_eq!(rate.per_second(at(0)), 0.0);
        (0..30).for_each(|second| rate.record(at(second)));
        assert_eq!(rate.per_second(at(29)), 0.5);
        assert_eq!(
            rate.per_second(at(59)),
            0.5,
            "one message a second for half a minute"
        );
        assert_eq!(rate.per_second(at(60)), 25.0 / 60.0);
        assert_eq!(rate.per_second(at(85)), 0.0);
        rate.record(at(100));
        assert_eq!(
            rate.per_second(at(100)),
            1.0 / 60.0,
            "messages older than a minute are not counted"
        );
        rate.record(at(1_000_000));
        assert_eq!(rate.per_second(at(1_000_000)), 1.0 / 60.0);
    }

    #[test]
    fn a_time_that_goes_back_loses_no_message() {
        let mut rate = MessageRate::default();
        rate.record(at(50));
        rate.record(at(10));
        assert_eq!(rate.per_second(at(10)), 2.0 / 60.0);
    }
}
