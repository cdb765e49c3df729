//! The timer for the limits of a reply.
//!
//! Nearly every event moves the idle limit, and hardly any limit ends: the timer is armed again
//! only when it fires, or for a limit that is earlier than the one it is armed for.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use kv_blocks::Moment;
use net::Clock;
use tokio::time::{Instant, Sleep, sleep};

/// The timer.
#[derive(Debug)]
pub(super) struct LimitTimer {
    sleep: Pin<Box<Sleep>>,
    /// When it fires.
    fires: Moment,
}

impl LimitTimer {
    /// Returns a timer for a limit that ends at `limit`.
    pub(super) fn new(limit: Moment, now: Moment) -> Self {
        Self {
            sleep: Box::pin(sleep(limit.since(now))),
            fires: limit,
        }
    }

    /// Resolves when the limit has ended.
    pub(super) fn poll_until(
        &mut self,
        cx: &mut Context<'_>,
        limit: Moment,
        clock: &Clock,
    ) -> Poll<()> {
        if limit >= self.fires && self.sleep.as_mut().poll(cx).is_pending() {
            // A task that has run for long is not told that its timer has fired.
            return if clock.now() >= limit {
                Poll::Ready(())
            } else {
                Poll::Pending
            };
        }
        loop {
            let now = clock.now();
            if now >= limit {
                return Poll::Ready(());
            }
            // It may fire early by the granularity of timers.
            self.fires = limit;
            let left = Instant::now() + limit.since(now);
            self.sleep.as_mut().reset(left);
            ready!(self.sleep.as_mut().poll(cx));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_limit_that_moved_ends_at_its_new_time_also_if_that_is_earlier() {
        let clock = Clock::system();
        let begun = clock.now();
        let mut timer = LimitTimer::new(begun + Duration::from_millis(5), begun);
        for after in [30, 40, 3_600_000, 60] {
            let limit = begun + Duration::from_millis(after);
            let ended = std::future::poll_fn(|cx| timer.poll_until(cx, limit, &clock));
            if after == 3_600_000 {
                let waited = tokio::time::timeout(Duration::from_millis(1), ended).await;
                assert!(waited.is_err());
                continue;
            }
            ended.await;
            assert!(clock.now() >= limit);
        }
    }
}
