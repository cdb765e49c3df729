//! Reads what a stream has on a subject.

use async_nats::{Message, Subscriber};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::{DeliveredMessage, JetStream, JetStreamError, PATIENCE};

/// Reads the past of a subject: see [`JetStream::read`].
#[derive(Debug)]
pub struct StreamReader {
    pub(super) jetstream: JetStream,
    pub(super) stream: String,
    pub(super) consumer: String,
    pub(super) inbox: String,
    pub(super) messages: Subscriber,
    /// Messages that were not delivered yet.
    pub(super) left: u64,
    /// Messages of the current request that are still to come.
    pub(super) asked: u32,
}

impl StreamReader {
    /// Most messages of one request.
    const BATCH: u32 = 256;

    /// Returns the next message with its sequence; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<(u64, Message)>, JetStreamError> {
        while self.left > 0 {
            if self.asked == 0 {
                let of = (self.stream.as_str(), self.consumer.as_str());
                self.jetstream
                    .pull(of, &self.inbox, Self::BATCH, PATIENCE)
                    .await?;
                self.asked = Self::BATCH;
            }
            let message = timeout(PATIENCE * 2, self.messages.next())
                .await
                .ok()
                .flatten()
                .ok_or_else(|| JetStreamError::NoAnswer {
                    subject: self.stream.clone(),
                    reason: "no message came".to_owned(),
                })?;
            let Some(delivered) = DeliveredMessage::of(&message) else {
                // The end of the request: the messages that were left may have been removed.
                self.asked = 0;
                let of = (self.stream.as_str(), self.consumer.as_str());
                self.left = self.jetstream.consumer_info(of.0, of.1).await?.num_pending;
                continue;
            };
            self.asked -= 1;
            self.left = delivered.pending;
            return Ok(Some((delivered.stream_seq, message)));
        }
        self.jetstream
            .delete_consumer(&self.stream, &self.consumer)
            .await?;
        Ok(None)
    }
}
