//! Run time of this process, without the time in which it stood still.
//!
//! A process is stopped (SIGSTOP, a paused virtual machine, a debugger) or starved, while time goes
//! on around it. A lease that expires without a call from its holder must not expire meanwhile: the
//! holder may have called while this process could not receive. Such leases use this time line.

use std::time::Duration;

use kv_blocks::Moment;

/// Minimum gap between two readings that counts as a stall, once there are ticks.
const STALL: Duration = Duration::from_secs(1);

/// The time line that excludes stalls. Pure: it gets the time as an argument.
///
/// **Invariant**: it never goes back, and never ahead of the given time.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunTime {
    last: Moment,
    /// Whether a reader reads every [`RunTime::BEAT`]: without that, time without a reading is no
    /// evidence of a stall.
    has_beats: bool,
    stalled: Duration,
    /// When the latest stall ended.
    resumed_at: Option<Moment>,
}

impl RunTime {
    /// Interval of ticks while the process runs.
    pub const BEAT: Duration = Duration::from_millis(250);

    /// Creates the time line. All time is run time until the first tick.
    pub const fn new() -> Self {
        Self {
            last: Moment::START,
            has_beats: false,
            stalled: Duration::ZERO,
            resumed_at: None,
        }
    }

    /// Records a reading that is followed by another one after [`RunTime::BEAT`], unless this
    /// process stands still.
    pub fn record_tick(&mut self, now: Moment) -> Moment {
        let run = self.advance(now);
        self.has_beats = true;
        run
    }

    /// Returns run time at `now`. A gap since the last reading that is a stall counts as one beat.
    pub fn advance(&mut self, now: Moment) -> Moment {
        let gap = now.since(self.last);
        if gap >= STALL && self.has_beats {
            self.stalled += gap - Self::BEAT;
            self.resumed_at = Some(now);
        }
        self.last = self.last.max(now);
        self.last - self.stalled
    }

    /// Returns the sum of all stalls.
    pub fn stalled(&self) -> Duration {
        self.stalled
    }

    /// Returns whether a stall ended less than `within` before the latest reading.
    pub fn resumed_within(&self, within: Duration) -> bool {
        self.resumed_at
            .is_some_and(|at| self.last.since(at) < within)
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::at(Duration::from_millis(ms))
    }

    #[test]
    #[contract("F65")]
    fn a_pause_of_the_process_does_not_count_as_run_time() {
        let mut time = RunTime::new();
        let mut run = at(0);
        for now in (0..=10_000).step_by(250) {
            run = time.record_tick(at(now));
        }
        assert_eq!((run, time.stalled()), (at(10_000), Duration::ZERO));
        // A minute passes between two ticks.
        assert_eq!(time.advance(at(70_000)), at(10_250));
        assert_eq!(time.stalled(), Duration::from_millis(59_750));
        assert_eq!(time.advance(at(70_250)), at(10_500));
        assert!(time.resumed_within(Duration::from_secs(1)));
        for now in (70_500..=75_000).step_by(250) {
            run = time.advance(at(now));
        }
        assert_eq!(run, at(15_250));
        assert!(!time.resumed_within(Duration::from_secs(1)));
    }

    #[test]
    fn a_late_tick_is_no_stall_and_an_earlier_time_changes_nothing() {
        let mut time = RunTime::new();
        assert_eq!(time.advance(at(2_000)), at(2_000));
        assert_eq!(
            time.record_tick(at(5_000)),
            at(5_000),
            "no stall is known before the first tick"
        );
        assert_eq!(time.advance(at(5_900)), at(5_900));
        assert_eq!(time.advance(at(5_500)), at(5_900));
        assert_eq!(time.stalled(), Duration::ZERO);
    }
}
