//! The one clock of the process.
//!
//! All other code takes time as a value: a [`Moment`] for distances, a wall-clock time for output
//! to people. A moment is never turned into a stored wall time: [`Clock::wall_at`] goes through the
//! present, so a corrected system clock changes the displayed time and nothing else.

use std::time::{Duration, Instant, UNIX_EPOCH};

use kv_blocks::Moment;
use parking_lot::Mutex;
use time::OffsetDateTime;

use crate::RunTime;

/// Reads the operating system's clocks. Copies, and clocks made separately, share one time line.
///
/// ```
/// let clock = net::Clock::system();
/// let before = clock.now();
/// assert!(net::Clock::system().now() >= before);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

/// The run time of the process: a stop of the process stops everything in it. Locked for a few
/// lines.
static RUN_TIME: Mutex<RunTime> = Mutex::new(RunTime::new());

impl Clock {
    /// Returns the system's clocks; moments count from the first call in this process.
    pub fn system() -> Self {
        Self {
            start: runtime::start(),
        }
    }

    /// Returns a clock of a process that has run longer by `time`.
    #[cfg(test)]
    pub(crate) fn ahead_by(time: Duration) -> Self {
        let clock = Self::system();
        Self {
            start: clock.start.checked_sub(time).unwrap_or(clock.start),
        }
    }

    /// Returns the present on the monotonic time line.
    pub fn now(&self) -> Moment {
        Moment::at(runtime::monotonic().saturating_duration_since(self.start))
    }

    /// Returns the present on the time line that excludes stalls of the process ([`RunTime`]): for
    /// deadlines that another process extends by its calls.
    pub fn run_time(&self) -> Moment {
        if runtime::is_simulated() {
            // Virtual time has no stalls, and is not the process's.
            return self.now();
        }
        RUN_TIME.lock().advance(self.now())
    }

    /// Records a tick and returns the sum of all stalls of this process. The caller calls again
    /// after [`RunTime::BEAT`], which is how a stall is detected.
    pub fn record_tick(&self) -> Duration {
        let mut run_time = RUN_TIME.lock();
        run_time.record_tick(self.now());
        run_time.stalled()
    }

    /// Returns whether this process stalled and has run for less than `within` since.
    pub fn resumed_within(&self, within: Duration) -> bool {
        let mut run_time = RUN_TIME.lock();
        run_time.advance(self.now());
        run_time.resumed_within(within)
    }

    /// Returns the present wall-clock time (UTC).
    pub fn wall(&self) -> OffsetDateTime {
        runtime::system_time().into()
    }

    /// Returns the wall time of a moment of this process, as seen from now.
    pub fn wall_at(&self, moment: Moment) -> OffsetDateTime {
        let ago = self.now().since(moment);
        let ahead = moment.since(self.now());
        self.wall() - ago + ahead
    }

    /// Returns milliseconds since 1970, UTC; 0 for a system clock set before that.
    pub fn unix_ms(&self) -> u64 {
        let since = runtime::system_time()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns seconds since 1970, UTC.
    pub fn unix_s(&self) -> i64 {
        self.wall().unix_timestamp()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

/// Formats a time for interfaces: RFC 3339, UTC, milliseconds.
///
/// ```
/// assert_eq!(net::rfc3339(time::OffsetDateTime::UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
/// ```
pub fn rfc3339(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.millisecond()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separate_clocks_share_one_time_line() {
        let first = Clock::system();
        let at = first.now();
        assert!(Clock::system().now() >= at);
        assert!(Clock::system().now().since(at) < Duration::from_secs(60));
    }

    #[test]
    fn the_wall_time_of_a_moment_has_the_same_age() {
        let clock = Clock::system();
        let earlier = clock.wall_at(clock.now() + Duration::from_secs(3600)) - clock.wall();
        assert!(
            (3590..=3610).contains(&earlier.whole_seconds()),
            "{earlier}"
        );
    }

    #[test]
    fn milliseconds_are_shown_with_three_digits() {
        let at = OffsetDateTime::UNIX_EPOCH + Duration::from_millis(1_005);
        assert_eq!(rfc3339(at), "1970-01-01T00:00:01.005Z");
    }
}
