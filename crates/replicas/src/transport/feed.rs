//! The messages of this replica, for peers that read them over HTTP.
//!
//! A reader that is too slow loses its connection, not only messages: it connects again and fetches
//! the whole load.

use bytes::{BufMut, Bytes, BytesMut};
use tokio::sync::broadcast;

use crate::wire::MAX_MESSAGE;

/// Most messages that wait for a reader.
const MOST_WAITING: usize = 256;
/// Bytes of the length in front of each message.
const LENGTH: usize = 4;

/// Sends this replica's messages to its readers.
#[derive(Clone, Debug)]
pub(crate) struct FeedHub(broadcast::Sender<Bytes>);

impl Default for FeedHub {
    fn default() -> Self {
        Self(broadcast::Sender::new(MOST_WAITING))
    }
}

impl FeedHub {
    /// Sends a message to every reader.
    pub(crate) fn send(&self, message: &[u8]) {
        // Without readers there is nothing to send.
        let _ = self.0.send(framed(message));
    }

    /// Returns the messages from now on.
    pub(crate) fn feed(&self) -> Feed {
        Feed(self.0.subscribe())
    }
}

/// The messages of a replica from one moment on, each with its length in front of it (four bytes,
/// little-endian).
#[derive(Debug)]
pub struct Feed(broadcast::Receiver<Bytes>);

impl Feed {
    /// Returns the next message; `None`: the replica has ended, or messages were lost because the
    /// reader was too slow. Cancel-safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.0.recv().await.ok()
    }
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(LENGTH + message.len());
    frame.put_u32_le(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// A message is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Splits received bytes into messages.
#[derive(Debug, Default)]
pub(crate) struct FrameSplitter(BytesMut);

impl FrameSplitter {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Returns the next whole message; `None`: more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, TooLong> {
        let Some(length) = self.0.first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_MESSAGE {
            return Err(TooLong);
        }
        if self.0.len() < LENGTH + length {
            return Ok(None);
        }
        let mut frame = self.0.split_to(LENGTH + length);
        Ok(Some(frame.split_off(LENGTH).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_wherever_the_bytes_were_cut() {
        let sent: Vec<Bytes> = ["", "one", "another message"]
            .iter()
            .map(|text| Bytes::copy_from_slice(text.as_bytes()))
            .collect();
        let bytes: Vec<u8> = sent.iter().flat_map(|message| framed(message)).collect();
        for size in 1..=bytes.len() {
            let (mut splitter, mut received) = (FrameSplitter::default(), Vec::new());
            for piece in bytes.chunks(size) {
                splitter.push(piece);
                while let Ok(Some(message)) = splitter.next() {
                    received.push(message);
                }
            }
            assert_eq!(received, sent, "cut into pieces of {size}");
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_the_bytes_arrive() {
        let mut splitter = FrameSplitter::default();
        splitter.push(&u32::MAX.to_le_bytes());
        assert_eq!(splitter.next(), Err(TooLong));
    }

    #[tokio::test]
    async fn a_reader_that_is_too_slow_is_cut_off() {
        let hub = FeedHub::default();
        let mut feed = hub.feed();
        hub.send(b"first");
        assert!(feed.next().await.is_some());
        for _ in 0..=MOST_WAITING {
            hub.send(b"more");
        }
        assert_eq!(feed.next().await, None);
    }
}
