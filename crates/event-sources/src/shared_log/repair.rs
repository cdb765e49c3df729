//! When a follower of the log asks the engine.

use std::time::Duration;

use kv_blocks::Moment;

/// Shortest time between two questions: batches of the log may be unproven one after the other
/// until the engine has answered.
const PAUSE: Duration = Duration::from_secs(1);

/// The repairs of one stream.
#[derive(Debug, Default)]
pub(crate) struct RepairTimer {
    is_due: bool,
    last: Option<Moment>,
}

impl RepairTimer {
    /// Records that something was not proven.
    pub(crate) fn request(&mut self) {
        self.is_due = true;
    }

    /// Returns whether the engine is to be asked now, and takes the request.
    pub(crate) fn take(&mut self, now: Moment) -> bool {
        let rests = self.last.is_some_and(|last| now.since(last) < PAUSE);
        if !self.is_due || rests {
            return false;
        }
        self.is_due = false;
        self.last = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_a_second_apart_and_none_is_forgotten() {
        let at = |ms| Moment::at(Duration::from_millis(ms));
        let mut timer = RepairTimer::default();
        assert!(!timer.take(at(0)));
        timer.request();
        assert!(timer.take(at(100)));
        timer.request();
        assert!(!timer.take(at(1_099)));
        assert!(timer.take(at(1_100)));
        assert!(!timer.take(at(5_000)));
    }
}
