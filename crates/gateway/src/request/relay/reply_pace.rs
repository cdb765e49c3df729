//! When the bytes of a reply came, and how long its client held them up.

use kv_blocks::Moment;

/// A reply whose client held it up for more than this part of its time does not show how fast its
/// worker is.
const HELD_UP_PARTS: f64 = 10.0;

/// The times of a reply.
#[derive(Debug)]
pub(super) struct ReplyPace {
    pub(super) started: Moment,
    pub(super) last_byte: Moment,
    /// Whether the relay has waited for the worker since the last bytes.
    has_waited: bool,
    /// Microseconds in which the worker's bytes waited for the client: they were there when it took the
    /// next ones. At most an hour is counted.
    held_up_us: u32,
}

impl ReplyPace {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            started: now,
            last_byte: now,
            has_waited: false,
            held_up_us: 0,
        }
    }

    /// Records that the client takes bytes and none are there.
    pub(super) fn record_wait(&mut self) {
        self.has_waited = true;
    }

    /// Records that bytes came.
    pub(super) fn record_bytes(&mut self, now: Moment) {
        if !std::mem::take(&mut self.has_waited) {
            let us = u32::try_from(now.since(self.last_byte).as_micros()).unwrap_or(u32::MAX);
            self.held_up_us = self.held_up_us.saturating_add(us);
        }
        self.last_byte = now;
    }

    /// Returns whether the client held the reply up for a good part of its time.
    pub(super) fn is_held_up(&self) -> bool {
        f64::from(self.held_up_us) * HELD_UP_PARTS > 1e3 * self.last_byte.ms_since(self.started)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The times in ms at which bytes are there, and whether the relay waited for them.
    fn is_held_up(bytes: &[(u64, bool)]) -> bool {
        let at = |ms| Moment::at(Duration::from_millis(1_000 + ms));
        let mut pace = ReplyPace::new(at(0));
        for (ms, waited) in bytes {
            if *waited {
                pace.record_wait();
            }
            pace.record_bytes(at(*ms));
        }
        pace.is_held_up()
    }

    #[test]
    fn a_reply_is_held_up_if_its_bytes_waited_for_a_good_part_of_its_time() {
        let slow_worker = [(100, true), (900, true), (1_000, true)];
        assert!(!is_held_up(&slow_worker));
        // Two events at once, and a client that is late once by a little.
        let usual = [
            (100, true),
            (100, false),
            (500, true),
            (590, false),
            (1_000, true),
        ];
        assert!(!is_held_up(&usual));
        let one_long_pause = [(100, true), (600, false), (1_000, true)];
        assert!(is_held_up(&one_long_pause));
        let many_short_ones = [(100, true), (300, false), (500, false), (1_000, true)];
        assert!(is_held_up(&many_short_ones));
        assert!(!is_held_up(&[]));
    }
}
