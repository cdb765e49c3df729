//! Messages of the log.
//!
//! | header | value |
//! |---|---|
//! | `Nats-Msg-Id` | worker and rank, number, digest: the server stores a batch once, whoever publishes it |
//! | `Warmroute-Seq` | the engine's number of the batch |
//! | `Warmroute-Previous` | digest of the batch with the number before, if the publisher has it |
//! | `Warmroute-Tail` | the digest of the last batch, in a message without a payload: nothing follows it yet |

use bytes::Bytes;
use kv_blocks::StreamPosition;
use nats_client::{HeaderMap, Message};

const ID: &str = "Nats-Msg-Id";
const SEQ: &str = "Warmroute-Seq";
const PREVIOUS: &str = "Warmroute-Previous";
const TAIL: &str = "Warmroute-Tail";

/// One batch of an engine, as the log carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBatch {
    /// The engine's number of the batch.
    pub seq: u64,
    /// The digest of the batch with the number before; `None` if its publisher does not have it, or
    /// there is none.
    pub previous: Option<u64>,
    /// The batch as the engine published it.
    pub payload: Bytes,
}

/// A message of one worker's stream in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogMessage {
    /// A batch.
    Batch(LogBatch),
    /// The last batch so far. Who does not have it has missed something.
    Tail(StreamPosition),
}

impl LogBatch {
    /// Returns the position behind the batch.
    pub fn position(&self) -> StreamPosition {
        StreamPosition::of(self.seq, &self.payload)
    }
}

impl LogMessage {
    /// Returns headers and payload of the message on the stream of `token`.
    pub(crate) fn encode(&self, token: &str) -> (HeaderMap, Bytes) {
        let mut headers = HeaderMap::new();
        match self {
            Self::Batch(batch) => {
                let position = batch.position();
                let id = format!("{token}/{}/{:016x}", position.seq, position.digest);
                headers.insert(ID, id.as_str());
                headers.insert(SEQ, batch.seq.to_string().as_str());
                if let Some(previous) = batch.previous {
                    headers.insert(PREVIOUS, format!("{previous:016x}").as_str());
                }
                (headers, batch.payload.clone())
            }
            Self::Tail(position) => {
                headers.insert(SEQ, position.seq.to_string().as_str());
                headers.insert(TAIL, format!("{:016x}", position.digest).as_str());
                (headers, Bytes::new())
            }
        }
    }

    /// Reads a message; `None`: it is not from a router.
    pub(crate) fn decode(message: &Message) -> Option<Self> {
        let headers = message.headers.as_ref()?;
        let seq = headers.get(SEQ)?.as_str().parse().ok()?;
        let digest = |name: &'static str| {
            let text = headers.get(name)?.as_str();
            u64::from_str_radix(text, 16).ok()
        };
        if headers.get(TAIL).is_some() {
            return Some(Self::Tail(StreamPosition {
                seq,
                digest: digest(TAIL)?,
            }));
        }
        Some(Self::Batch(LogBatch {
            seq,
            previous: digest(PREVIOUS),
            payload: message.payload.clone(),
        }))
    }

    /// Returns the bytes that the message takes in a queue, about.
    pub(crate) fn bytes(&self) -> usize {
        const ENTRY: usize = 256;
        match self {
            Self::Batch(batch) => batch.payload.len() + ENTRY,
            Self::Tail(_) => ENTRY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(message: &LogMessage) -> Message {
        let (headers, payload) = message.encode("w.0");
        Message {
            subject: "s".into(),
            reply: None,
            payload,
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        }
    }

    fn batch(seq: u64, previous: Option<u64>) -> LogMessage {
        LogMessage::Batch(LogBatch {
            seq,
            previous,
            payload: Bytes::from_static(b"batch"),
        })
    }

    #[test]
    fn messages_survive_a_round_trip() {
        let position = StreamPosition::of(7, b"batch");
        for message in [
            batch(0, None),
            batch(u64::MAX, Some(0)),
            LogMessage::Tail(position),
        ] {
            assert_eq!(LogMessage::decode(&sent(&message)), Some(message));
        }
    }

    #[test]
    fn a_batch_has_the_same_id_whoever_publishes_it() {
        let id = |message: &LogMessage, token| {
            let (headers, _) = message.encode(token);
            headers.get(ID).map(|id| id.as_str().to_owned())
        };
        assert_eq!(id(&batch(7, None), "w.0"), id(&batch(7, Some(3)), "w.0"));
        assert_ne!(id(&batch(7, None), "w.0"), id(&batch(8, None), "w.0"));
        assert_ne!(id(&batch(7, None), "w.0"), id(&batch(7, None), "w.1"));
        let tail = LogMessage::Tail(StreamPosition::of(7, b"batch"));
        assert_eq!(id(&tail, "w.0"), None, "a tail may be told again");
    }

    #[test]
    fn a_foreign_message_is_not_read() {
        let mut message = sent(&batch(7, None));
        for seq in ["", "x", "-1", "18446744073709551616"] {
            let mut headers = HeaderMap::new();
            headers.insert(SEQ, seq);
            message.headers = Some(headers);
            assert_eq!(LogMessage::decode(&message), None, "{seq}");
        }
        message.headers = None;
        assert_eq!(LogMessage::decode(&message), None);
    }
}
