//! Pauses between attempts.

use std::time::Duration;

/// Pauses that double from the first to the longest and start over after an attempt that ran long
/// enough.
///
/// ```
/// use std::time::Duration;
/// use supervision::Backoff;
///
/// let seconds = Duration::from_secs;
/// let mut backoff = Backoff::new(seconds(1), seconds(3)).reset_after(seconds(60));
/// let mut pause = |lasted| backoff.after(seconds(lasted)).as_secs();
/// assert_eq!([0, 0, 0, 60, 0].map(|lasted| pause(lasted)), [1, 2, 3, 1, 2]);
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    reset_after: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates pauses from `first` to `longest`; an attempt that ran as long as the longest pause
    /// resets them.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            reset_after: longest,
            next: first,
        }
    }

    /// Sets how long an attempt must run to reset the pauses.
    #[must_use]
    pub fn reset_after(mut self, lasted: Duration) -> Self {
        self.reset_after = lasted;
        self
    }

    /// Returns the pause after an attempt that ran for `lasted`.
    pub fn after(&mut self, lasted: Duration) -> Duration {
        if lasted >= self.reset_after {
            self.next = self.first;
        }
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }
}
