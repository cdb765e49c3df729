//! Pauses between attempts.

use std::time::Duration;

/// Pauses that double from the first to the longest, and start again after an attempt that lasted long enough.
///
/// ```
/// use std::time::Duration;
/// use supervision::Backoff;
///
/// let seconds = Duration::from_secs;
/// let mut backoff = Backoff::new(seconds(1), seconds(3)).reset_after(seconds(60));
/// let pauses: Vec<u64> = [0, 0, 0, 60, 0].map(|lasted| backoff.after(seconds(lasted)).as_secs()).to_vec();
/// assert_eq!(pauses, [1, 2, 3, 1, 2]);
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    reset_after: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `first` to `longest`; an attempt that lasted as long as the longest pause starts them again.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            reset_after: longest,
            next: first,
        }
    }

    /// An attempt that lasted this long starts the pauses again.
    #[must_use]
    pub fn reset_after(mut self, lasted: Duration) -> Self {
        self.reset_after = lasted;
        self
    }

    /// The pause after an attempt that lasted so long.
    pub fn after(&mut self, lasted: Duration) -> Duration {
        if lasted >= self.reset_after {
            self.next = self.first;
        }
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }
}
