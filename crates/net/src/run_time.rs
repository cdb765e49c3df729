//! How long this process has run, without the time in which it stood still.
//!
//! A process is stopped (SIGSTOP, a paused virtual machine, a debugger) or starved, and time goes on around it. What was
//! promised to others for a time without a word from them, a lease, must not run out meanwhile: they may have called, and
//! nobody was there to hear it. Such promises are kept on this time line.

use std::time::Duration;

use kv_blocks::Moment;

/// Time between two readings counts as a stall from here on, once there are beats.
const STALL: Duration = Duration::from_secs(1);

/// The time line of what this process has seen of time. Pure: it is told the time.
///
/// **Invariant**: it never goes back, and never ahead of the time that it is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunTime {
    last: Moment,
    /// Somebody reads every [`RunTime::BEAT`]: without that, time without a reading says nothing.
    has_beats: bool,
    stalled: Duration,
    /// When the latest stall ended.
    resumed_at: Option<Moment>,
}

impl RunTime {
    /// How often somebody must read while the process runs.
    pub const BEAT: Duration = Duration::from_millis(250);

    /// All time is run time until the first beat.
    pub const fn new() -> Self {
        Self {
            last: Moment::START,
            has_beats: false,
            stalled: Duration::ZERO,
            resumed_at: None,
        }
    }

    /// A reading that is followed by another one after [`RunTime::BEAT`], unless this process stands still.
    pub fn record_tick(&mut self, now: Moment) -> Moment {
        let run = self.advance(now);
        self.has_beats = true;
        run
    }

    /// Run time at `now`. Of a gap since the last reading that is a stall, only one beat counts.
    pub fn advance(&mut self, now: Moment) -> Moment {
        let gap = now.since(self.last);
        if gap >= STALL && self.has_beats {
            self.stalled += gap - Self::BEAT;
            self.resumed_at = Some(now);
        }
        self.last = self.last.max(now);
        self.last - self.stalled
    }

    /// The sum of all stalls.
    pub fn stalled(&self) -> Duration {
        self.stalled
    }

    /// Whether a stall ended less than `within` before the latest reading.
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
    fn a_pause_of_the_process_is_no_run_time() {
        let mut time = RunTime::new();
        let mut run = at(0);
        for now in (0..=10_000).step_by(250) {
            run = time.record_tick(at(now));
        }
        assert_eq!((run, time.stalled()), (at(10_000), Duration::ZERO));
        // A minute passes between two beats.
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
    fn a_late_beat_is_no_stall_and_an_earlier_time_changes_nothing() {
        let mut time = RunTime::new();
        assert_eq!(time.advance(at(2_000)), at(2_000));
        assert_eq!(
            time.record_tick(at(5_000)),
            at(5_000),
            "before there are beats nobody knows of a stall"
        );
        assert_eq!(time.advance(at(5_900)), at(5_900));
        assert_eq!(time.advance(at(5_500)), at(5_900));
        assert_eq!(time.stalled(), Duration::ZERO);
    }
}
