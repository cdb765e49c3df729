//! Pauses between attempts.

use std::time::Duration;

/// Pauses that double from the first to the longest.
///
/// ```
/// use std::time::Duration;
/// use resilience::Backoff;
///
/// let seconds = Duration::from_secs;
/// let mut backoff = Backoff::new(seconds(1), seconds(3)).reset_after(seconds(60));
/// let mut pause = |lasted| backoff.after(seconds(lasted)).as_secs();
/// assert_eq!([0, 0, 0, 60, 0].map(|lasted| pause(lasted)), [1, 2, 3, 1, 2]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    second: Duration,
    longest: Duration,
    reset_after: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates pauses from `first` to `longest`; an attempt that lasted as long as the longest
    /// pause resets them.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            second: first.saturating_mul(2),
            longest,
            reset_after: longest,
            next: first,
        }
    }

    /// Sets the pause after the first one, from which later ones double.
    #[must_use]
    pub const fn with_second(mut self, second: Duration) -> Self {
        self.second = second;
        self
    }

    /// Sets how long an attempt must last to reset the pauses.
    #[must_use]
    pub const fn reset_after(mut self, lasted: Duration) -> Self {
        self.reset_after = lasted;
        self
    }

    /// Returns the pause after an attempt that failed at once.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        let next = if pause == self.first {
            self.second
        } else {
            pause.saturating_mul(2)
        };
        self.next = next.min(self.longest);
        pause
    }

    /// Returns the pause after an attempt that ended after `lasted`.
    pub fn after(&mut self, lasted: Duration) -> Duration {
        if lasted >= self.reset_after {
            self.reset();
        }
        self.pause()
    }

    /// Makes the next pause the first one.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Makes the next pause the longest one.
    pub(crate) fn skip_to_longest(&mut self) {
        self.next = self.longest;
    }
}

/// Returns a pause that is longer by at most the share `most` of it, so that many callers that lost
/// one server together do not return together. `chance`: a random number from 0 to 1.
pub fn jittered(pause: Duration, most: f64, chance: f64) -> Duration {
    pause.mul_f64(1.0 + most * chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_double_from_the_first_or_the_second_to_the_longest() {
        for (backoff, expected) in [
            (Backoff::new(ms(10), ms(50)), [10, 20, 40, 50, 50]),
            (
                Backoff::new(ms(10), ms(500)).with_second(ms(50)),
                [10, 50, 100, 200, 400],
            ),
            (
                Backoff::new(ms(10), ms(60)).with_second(ms(90)),
                [10, 60, 60, 60, 60],
            ),
            (Backoff::new(ms(10), ms(10)), [10; 5]),
            (Backoff::new(ms(0), ms(0)), [0; 5]),
        ] {
            let mut pauses = backoff;
            let pauses = [(); 5].map(|()| pauses.pause());
            assert_eq!(pauses, expected.map(ms), "{backoff:?}");
        }
    }

    #[test]
    fn an_attempt_that_lasted_long_enough_resets_the_pauses() {
        let mut by_longest = Backoff::new(ms(10), ms(50));
        let mut by_choice = by_longest.reset_after(ms(100));
        let mut never = by_longest.reset_after(Duration::MAX);
        for (lasted, pauses) in [
            (0, [10, 10, 10]),
            (49, [20, 20, 20]),
            (50, [10, 40, 40]),
            (99, [10, 50, 50]),
            (100, [10, 10, 50]),
            (0, [20, 20, 50]),
        ] {
            let all = [&mut by_longest, &mut by_choice, &mut never];
            assert_eq!(all.map(|one| one.after(ms(lasted))), pauses.map(ms));
        }
        never.reset();
        assert_eq!(never.pause(), ms(10));
        never.skip_to_longest();
        assert_eq!([never.pause(), never.pause()], [ms(50); 2]);
    }

    #[test]
    fn jitter_lengthens_a_pause_by_its_share_at_most() {
        for (chance, pause) in [(-1.0, 100), (0.0, 100), (0.5, 110), (1.0, 120), (7.0, 120)] {
            assert_eq!(jittered(ms(100), 0.2, chance), ms(pause), "{chance}");
        }
    }
}
