//! What JetStream takes and returns.

use std::time::Duration;

use async_nats::{Message, StatusCode};
use serde::{Deserialize, Serialize};

use super::{JetStreamError, read};

/// Where a stream keeps its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// On disk.
    #[default]
    File,
    /// In memory; they are lost with the server.
    Memory,
}

/// The configuration of a stream. Durations are nanoseconds, as JetStream writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamConfig {
    /// Its name.
    pub name: String,
    /// The subjects that it takes.
    pub subjects: Vec<String>,
    /// Where it keeps its messages.
    pub storage: Storage,
    /// Longest age of a message; 0: any.
    pub max_age: u64,
    /// Most bytes; -1: any number. The oldest messages are removed first.
    pub max_bytes: i64,
    /// Most messages per subject; -1: any number.
    pub max_msgs_per_subject: i64,
    /// `old` or `new`: which message a full stream discards.
    pub discard: String,
    /// Time in which a message with a known `Nats-Msg-Id` is a duplicate.
    pub duplicate_window: u64,
    /// Copies in a cluster.
    pub num_replicas: u32,
    /// Whether a message may replace the earlier ones of its subject.
    pub allow_rollup_hdrs: bool,
}

/// The state of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StreamInfo {
    /// Its configuration.
    pub config: StreamConfig,
    /// The time of its creation, which distinguishes it from another of its name.
    pub created: String,
    /// Its messages.
    pub state: StreamState,
}

/// The file storage of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct AccountInfo {
    /// Used bytes.
    #[serde(default)]
    pub storage: u64,
    /// What it may use.
    #[serde(default)]
    pub limits: AccountLimits,
}

/// The limits of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct AccountLimits {
    /// Most bytes; -1: only the limit of the server, which it does not tell.
    pub max_storage: i64,
}

/// The messages of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StreamState {
    /// Number of messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sequence of the first one.
    pub first_seq: u64,
    /// Time of the first one, RFC 3339.
    pub first_ts: String,
    /// Sequence of the last one.
    pub last_seq: u64,
}

/// The configuration of a durable pull consumer with cumulative acknowledgements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerConfig {
    /// Its name.
    pub name: String,
    /// The first sequence to deliver.
    pub from: u64,
    /// Time without a request after which the server removes it.
    pub inactive_after: Duration,
    /// Most delivered messages that are not acknowledged.
    pub max_unacknowledged: u64,
}

/// The state of a consumer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ConsumerInfo {
    /// Its name.
    pub name: String,
    /// Messages that were not delivered yet.
    #[serde(default)]
    pub num_pending: u64,
    /// The last acknowledged message.
    #[serde(default)]
    pub ack_floor: AckFloor,
}

/// The last acknowledged message of a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct AckFloor {
    /// Its sequence in the stream.
    pub stream_seq: u64,
}

/// The server's acknowledgement of a publication.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PublishAck {
    /// The stream that took it.
    pub stream: String,
    /// Its sequence there.
    pub seq: u64,
    /// Whether the stream had it before.
    #[serde(default)]
    pub duplicate: bool,
}

/// A message as a stream holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its subject.
    pub subject: String,
    /// Its sequence in the stream.
    pub seq: u64,
    /// The time of its arrival, RFC 3339.
    pub time: String,
    /// Its headers as lines.
    pub headers: String,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// What the reply subject of a delivered message says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredMessage {
    /// Sequence in the stream.
    pub stream_seq: u64,
    /// Sequence in the consumer; without a hole, unless a delivery was lost.
    pub consumer_seq: u64,
    /// Messages of the consumer that are not delivered yet.
    pub pending: u64,
}

impl DeliveredMessage {
    /// Reads the reply subject: `$JS.ACK.STREAM.CONSUMER.COUNT.SEQ.SEQ.TIME.PENDING`, in newer
    /// servers with domain and account behind `ACK`.
    pub fn of(message: &Message) -> Option<Self> {
        let reply = message.reply.as_ref()?;
        let tokens: Vec<&str> = reply.as_str().split('.').collect();
        let at = match tokens.len() {
            9 => 0,
            11.. => 2,
            _ => return None,
        };
        if tokens[0] != "$JS" || tokens[1] != "ACK" {
            return None;
        }
        let number = |index: usize| tokens[at + index].parse().ok();
        Some(Self {
            stream_seq: number(5)?,
            consumer_seq: number(6)?,
            pending: number(8)?,
        })
    }
}

impl PublishAck {
    /// Reads the answer to a publication that was sent with a reply subject.
    pub fn read(reply: &Message) -> Result<Self, JetStreamError> {
        if reply.status == Some(StatusCode::NO_RESPONDERS) {
            return Err(JetStreamError::Nobody {
                subject: reply.subject.to_string(),
            });
        }
        read(reply.subject.as_str(), reply)
    }
}

/// Returns a duration as JetStream writes it.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for AccountLimits {
    fn default() -> Self {
        Self { max_storage: -1 }
    }
}

impl StreamConfig {
    /// Describes a stream that discards its oldest messages.
    pub fn new(name: impl Into<String>, subjects: Vec<String>) -> Self {
        Self {
            name: name.into(),
            subjects,
            storage: Storage::File,
            max_age: 0,
            max_bytes: -1,
            max_msgs_per_subject: -1,
            discard: "old".to_owned(),
            duplicate_window: nanoseconds(Duration::from_secs(120)),
            num_replicas: 1,
            allow_rollup_hdrs: false,
        }
    }

    /// Limits the age of messages.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = nanoseconds(age);
        if self.max_age > 0 {
            self.duplicate_window = self.duplicate_window.min(self.max_age);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn delivered(reply: &str) -> Option<DeliveredMessage> {
        DeliveredMessage::of(&Message {
            subject: "s".into(),
            reply: Some(reply.into()),
            payload: Bytes::new(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        })
    }

    #[test]
    fn the_reply_subject_of_older_and_newer_servers_is_read() {
        let expected = DeliveredMessage {
            stream_seq: 7,
            consumer_seq: 3,
            pending: 2,
        };
        assert_eq!(delivered("$JS.ACK.s.c.1.7.3.1700000000.2"), Some(expected));
        assert_eq!(
            delivered("$JS.ACK.domain.hash.s.c.1.7.3.1700000000.2.token"),
            Some(expected)
        );
        for other in [
            "_INBOX.x",
            "$JS.ACK.s.c.1.x.3.1700000000.2",
            "a.b.c.d.e.f.g.h.i",
        ] {
            assert_eq!(delivered(other), None, "{other}");
        }
    }
}
