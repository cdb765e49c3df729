//! The reading task: connects, queues messages, and reconnects, forever.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use net::Clock;
use tokio::sync::mpsc;

use super::{
    StreamMessage,
    backoff::SseBackoff,
    connection::{ConnectionError, EVENT_BYTES, EventConnection, ReceivedEvent, SseDialer},
    reader_channel::{LinkMessage, ReaderChannel},
};

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
        let mut backoff = SseBackoff::new(self.reconnect_interval);
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
            let wait = backoff.after(lasted, chance());
            let held = self
                .link
                .state()
                .hold_until
                .map_or(Duration::ZERO, |until| until.since(self.clock.now()));
            tokio::time::sleep(wait.max(held)).await;
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
                if !self.link.try_push(
                    &self.queue,
                    LinkMessage {
                        connection,
                        message,
                    },
                ) {
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

/// Returns an unpredictable number from 0 to 1.
fn chance() -> f64 {
    // The standard library's hash keys serve as the random source.
    let number = RandomState::new().hash_one(0_u8);
    f64::from((number >> 32) as u32) / f64::from(u32::MAX)
}
