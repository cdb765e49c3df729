//! The reading task: connects, queues messages, and reconnects, forever.

use std::{sync::Arc, time::Duration};

use net::Clock;
use resilience::{Backoff, jittered};
use tokio::sync::mpsc;

use super::{
    StreamMessage,
    connection::{ConnectionError, EVENT_BYTES, EventConnection, ReceivedEvent, SseDialer},
    reader_channel::{LinkMessage, ReaderChannel},
};

/// First wait before a reconnect, unless the configured interval is shorter.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait; a connection of at least this length resets the waits.
const LONGEST: Duration = Duration::from_secs(60);
/// Most jitter, as a share of the wait.
const JITTER: f64 = 0.1;
/// Error text for a full queue.
const FULL: &str =
    "events came faster than they could be applied and some were let go: the stream is asked anew";

/// The reading half of a source.
#[derive(Debug)]
pub(crate) struct SseReader {
    pub(crate) dial: SseDialer,
    pub(crate) reconnect_interval: Duration,
    pub(crate) queue: mpsc::Sender<LinkMessage>,
    pub(crate) link: Arc<ReaderChannel>,
    pub(crate) clock: Clock,
}

impl SseReader {
    /// Runs until dropped.
    pub(crate) async fn run(self) {
        let mut backoff = reconnects(self.reconnect_interval);
        loop {
            let mut lasted = Duration::ZERO;
            let reason = match self.dial.open().await {
                Ok(mut connection) => {
                    let opened = self.clock.now();
                    let number = self.link.opened(opened);
                    tracing::info!(endpoint = %self.dial.endpoint, "event stream connected");
                    let reason = self.read(&mut connection, number).await;
                    lasted = self.clock.now().since(opened);
                    reason
                }
                Err(error) => Some(error),
            };
            if let Some(reason) = reason {
                tracing::warn!(endpoint = %self.dial.endpoint, %reason, "no event stream");
                self.link.closed(reason.to_string());
            }
            let wait = wait(&mut backoff, lasted, runtime::chance());
            let paused_for = self
                .link
                .state()
                .paused_until
                .map_or(Duration::ZERO, |until| until.since(self.clock.now()));
            tokio::time::sleep(wait.max(paused_for)).await;
        }
    }

    /// Reads until the connection ends; `None`: it was given up.
    async fn read(&self, connection: &mut EventConnection, number: u64) -> Option<ConnectionError> {
        let mut given_up = std::pin::pin!(self.link.wait_for_give_up(number));
        let mut on_message = |received: ReceivedEvent<'_>| self.received(number, &received);
        loop {
            tokio::select! {
                biased;
                () = &mut given_up => {
                    self.link.closed_by_us();
                    return None;
                }
                read = connection.next(&mut on_message) => if let Err(error) = read { return Some(error) },
            }
            // Reading from a buffer never awaits, so the loop yields explicitly.
            tokio::task::coop::consume_budget().await;
        }
    }

    fn received(&self, connection: u64, received: &ReceivedEvent<'_>) {
        match received {
            ReceivedEvent::Message { name, data } => {
                let name = name.map(|name| String::from_utf8_lossy(name).into_owned());
                let message = StreamMessage {
                    name,
                    data: bytes::Bytes::copy_from_slice(data),
                };
                if !self.link.try_push(&self.queue, connection, message) {
                    self.link.record_lost(connection, FULL);
                }
            }
            ReceivedEvent::Oversized => {
                self.link.record_skipped(
                    true,
                    &format!("an event of more than {EVENT_BYTES} bytes was let go"),
                );
            }
            ReceivedEvent::NoText => self.link.record_skipped(
                false,
                "a web socket message is not text: expected a JSON object",
            ),
        }
    }
}

/// Returns the waits for an `interval`: min(1 s, interval), the interval, then doubling up to a
/// minute.
fn reconnects(interval: Duration) -> Backoff {
    let (first, second) = if interval > FIRST {
        (FIRST, interval)
    } else {
        (interval, interval * 2)
    };
    Backoff::new(first, LONGEST).with_second(second)
}

/// Returns the wait after a connection of this length (zero: it could not be made), however it
/// ended.
fn wait(backoff: &mut Backoff, lasted: Duration, chance: f64) -> Duration {
    jittered(backoff.after(lasted), JITTER, chance).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("CK48")]
    fn the_first_pause_is_a_second_then_the_interval_doubling_to_a_minute() {
        for (interval, pauses) in [
            (
                5_000,
                [1_000, 5_000, 10_000, 20_000, 40_000, 60_000, 60_000],
            ),
            (20, [20, 40, 80, 160, 320, 640, 1_280]),
            (
                90_000,
                [1_000, 60_000, 60_000, 60_000, 60_000, 60_000, 60_000],
            ),
        ] {
            let mut backoff = reconnects(Duration::from_millis(interval));
            let waits = [(); 7].map(|()| wait(&mut backoff, Duration::ZERO, 0.0).as_millis());
            assert_eq!(waits, pauses, "{interval} ms");
        }
    }

    #[test]
    fn a_healthy_minute_resets_the_pauses_and_a_shorter_connection_does_not() {
        let mut backoff = reconnects(Duration::from_secs(5));
        for (lasted, pause) in [(0, 1), (0, 5), (0, 10), (59, 20), (60, 1), (0, 5)] {
            let wait = wait(&mut backoff, Duration::from_secs(lasted), 0.0);
            assert_eq!(wait.as_secs(), pause);
        }
    }

    #[test]
    fn jitter_adds_at_most_a_tenth_and_never_exceeds_a_minute() {
        let mut backoff = reconnects(Duration::from_secs(5));
        for pause in [1_100, 5_500, 11_000, 22_000, 44_000, 60_000] {
            let wait = wait(&mut backoff, Duration::ZERO, 1.0);
            assert_eq!(wait.as_millis(), pause);
        }
    }
}
