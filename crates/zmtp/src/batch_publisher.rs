//! The publishing half of KV events, as engines do it: numbered batches on a PUB, and a ROUTER that
//! answers replay requests from the last of them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use kv_events::frames::{self, ReplayForm};
use net::ListenError;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::{Endpoint, Limits, Pub, PubSettings, Router};

/// A numbered batch.
pub type NumberedBatch = (u64, Bytes);

/// The last batches of a stream, bounded in number and in bytes; the oldest go first. Copies share
/// their content.
#[derive(Clone, Debug)]
pub struct ReplayBuffer(Arc<Mutex<BufferedBatches>>);

#[derive(Debug)]
struct BufferedBatches {
    batches: VecDeque<NumberedBatch>,
    bytes: usize,
    most_batches: usize,
    most_bytes: usize,
}

impl ReplayBuffer {
    /// Creates an empty buffer.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use zmtp::ReplayBuffer;
    ///
    /// let buffer = ReplayBuffer::new(2, 1024);
    /// for number in 0..3 {
    ///     buffer.push((number, Bytes::from_static(b"batch")));
    /// }
    /// let kept: Vec<u64> = buffer.since(0).iter().map(|(number, _)| *number).collect();
    /// assert_eq!(kept, [1, 2]);
    /// ```
    pub fn new(most_batches: usize, most_bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(BufferedBatches {
            batches: VecDeque::new(),
            bytes: 0,
            most_batches,
            most_bytes,
        })))
    }

    /// Adds a batch, and drops the oldest beyond the limits.
    pub fn push(&self, batch: NumberedBatch) {
        let mut buffer = self.0.lock();
        buffer.bytes += batch.1.len();
        buffer.batches.push_back(batch);
        while buffer.batches.len() > buffer.most_batches || buffer.bytes > buffer.most_bytes {
            let Some((_, payload)) = buffer.batches.pop_front() else {
                return;
            };
            buffer.bytes -= payload.len();
        }
    }

    /// Returns the batches from a number on.
    pub fn since(&self, start: u64) -> Vec<NumberedBatch> {
        let buffer = self.0.lock();
        let batches = buffer.batches.iter();
        batches.filter(|(seq, _)| *seq >= start).cloned().collect()
    }

    /// Drops all batches.
    pub fn clear(&self) {
        let mut buffer = self.0.lock();
        buffer.batches.clear();
        buffer.bytes = 0;
    }
}

/// The form of a publisher's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchForm {
    /// Topic of every message; may be empty.
    pub topic: String,
    /// Layout of answers to replay requests.
    pub replay: ReplayForm,
}

/// The sockets of one stream. Dropping it ends all connections.
#[derive(Debug)]
pub struct BatchPublisher {
    live: Pub,
    replay: Option<ReplayTask>,
    topic: String,
}

impl BatchPublisher {
    /// Binds the sockets; without `replay` a reader cannot recover missed batches. Returns the
    /// endpoints with the ports that the system chose.
    ///
    /// # Errors
    ///
    /// An endpoint cannot be listened on.
    pub async fn bind(
        events: &Endpoint,
        replay: Option<&Endpoint>,
        form: BatchForm,
        buffer: &ReplayBuffer,
    ) -> Result<(Self, Endpoint, Option<Endpoint>), ListenError> {
        let (live, events) = Pub::bind(events, PubSettings::default()).await?;
        let topic = form.topic.clone();
        let Some(replay) = replay else {
            let publisher = Self {
                live,
                replay: None,
                topic,
            };
            return Ok((publisher, events, None));
        };
        let (router, replay) = Router::bind(replay, Limits::default()).await?;
        let task = runtime::spawn(answer_replays(router, buffer.clone(), form));
        let publisher = Self {
            live,
            replay: Some(ReplayTask(task)),
            topic,
        };
        Ok((publisher, events, Some(replay)))
    }

    /// Sends a batch to all subscribers. Never waits: a slow reader loses messages, as with the real
    /// socket.
    pub fn send(&self, seq: u64, payload: &[u8]) {
        self.live
            .send(&frames::encode_live(self.topic.as_bytes(), seq, payload));
    }

    /// Returns the number of connections with a subscription.
    pub fn subscribers(&self) -> usize {
        self.live.subscribers()
    }

    /// Stops listening and gives queued live messages this long to be sent.
    pub async fn close(self, linger: Duration) {
        if let Some(mut replay) = self.replay {
            replay.0.abort();
            // Cancellation is the expected end.
            let _ = (&mut replay.0).await;
        }
        self.live.close(linger).await;
    }
}

/// The task that answers replay requests. Dropping it ends the task.
#[derive(Debug)]
struct ReplayTask(JoinHandle<()>);

impl Drop for ReplayTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves one replay request at a time, as the real publisher does.
async fn answer_replays(mut router: Router, buffer: ReplayBuffer, form: BatchForm) {
    let BatchForm { topic, replay } = form;
    loop {
        let (peer, request) = router.recv().await;
        let start = match frames::parse_replay_request(&request) {
            Ok(start) => start,
            Err(error) => {
                // The real engine logs and does not answer.
                tracing::warn!(%error, "replay request ignored");
                continue;
            }
        };
        let mut here = true;
        for (seq, payload) in &buffer.since(start) {
            here = here
                && router
                    .send(
                        &peer,
                        &frames::encode_replay(replay, topic.as_bytes(), *seq, payload),
                    )
                    .await;
        }
        if here {
            router.send(&peer, &frames::encode_replay_end(replay)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(number: u64, bytes: usize) -> NumberedBatch {
        (number, Bytes::from(vec![0; bytes]))
    }

    fn numbers(buffer: &ReplayBuffer, start: u64) -> Vec<u64> {
        let batches = buffer.since(start).into_iter();
        batches.map(|(seq, _)| seq).collect()
    }

    #[test]
    fn the_oldest_batches_leave_a_full_buffer_by_number_and_by_bytes() {
        let buffer = ReplayBuffer::new(3, 100);
        for number in 0..5 {
            buffer.push(batch(number, 10));
        }
        assert_eq!(numbers(&buffer, 0), [2, 3, 4]);
        assert_eq!(numbers(&buffer, 4), [4]);
        buffer.push(batch(5, 85));
        assert_eq!(numbers(&buffer, 0), [4, 5], "95 of 100 bytes");
        buffer.push(batch(6, 101));
        assert!(
            numbers(&buffer, 0).is_empty(),
            "a batch above the limit is sent but not kept"
        );
        buffer.push(batch(7, 100));
        assert_eq!(numbers(&buffer, 0), [7]);
    }

    #[test]
    fn a_cleared_buffer_has_room_for_all_its_bytes() {
        let buffer = ReplayBuffer::new(3, 100);
        buffer.push(batch(0, 100));
        buffer.clear();
        buffer.push(batch(0, 50));
        buffer.push(batch(1, 50));
        assert_eq!(numbers(&buffer, 0), [0, 1]);
    }
}
