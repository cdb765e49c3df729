//! Requests to JetStream: streams, consumers, and acknowledged publications.

use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, Request, RequestErrorKind, StatusCode, Subscriber};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::timeout;

/// Time limit of one request.
const PATIENCE: Duration = Duration::from_secs(3);
/// Codes of the server's errors that callers distinguish.
const STREAM_NOT_FOUND: u64 = 10_059;
const STREAM_NAME_IN_USE: u64 = 10_058;
const CONSUMER_NOT_FOUND: u64 = 10_014;
const NO_MESSAGE_FOUND: u64 = 10_037;
const WRONG_LAST_SEQUENCE: u64 = 10_071;

/// Requests to JetStream over one connection.
#[derive(Clone, Debug)]
pub struct JetStream {
    client: Client,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JetStreamError {
    /// Nobody answers on the subject of JetStream.
    #[error(
        "the nats server has no JetStream, or no stream takes {subject}: start it with -js, or check the permissions"
    )]
    Nobody {
        /// The subject.
        subject: String,
    },
    /// No answer in time, or the connection ended.
    #[error("the nats server did not answer on {subject}: {reason}")]
    NoAnswer {
        /// The subject.
        subject: String,
        /// The reason.
        reason: String,
    },
    /// The server refused.
    #[error("the nats server refuses {subject}: {description} ({code})")]
    Refused {
        /// The subject.
        subject: String,
        /// The code of JetStream's error.
        code: u64,
        /// Its description.
        description: String,
    },
    /// An answer of unknown form.
    #[error("the answer on {subject} cannot be read: {reason}")]
    Unreadable {
        /// The subject.
        subject: String,
        /// The reason.
        reason: String,
    },
}

impl JetStreamError {
    /// Returns whether the stream, consumer or message does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { code, .. }
            if [STREAM_NOT_FOUND, CONSUMER_NOT_FOUND, NO_MESSAGE_FOUND].contains(code))
    }

    /// Returns whether another revision than the expected one was the last.
    pub fn is_other_revision(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == WRONG_LAST_SEQUENCE)
    }
}

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

/// Reads the past of a subject: see [`JetStream::read`].
#[derive(Debug)]
pub struct StreamReader {
    jetstream: JetStream,
    stream: String,
    consumer: String,
    inbox: String,
    messages: Subscriber,
    left: u64,
    /// Messages of the current request that are still to come.
    asked: u32,
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

#[derive(Deserialize)]
struct Failure {
    error: ApiError,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct StoredReply {
    message: StoredFields,
}

#[derive(Deserialize)]
struct StoredFields {
    subject: String,
    seq: u64,
    #[serde(default)]
    time: String,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

#[derive(Deserialize)]
struct Subjects {
    state: SubjectsState,
}

#[derive(Deserialize)]
struct SubjectsState {
    #[serde(default)]
    subjects: std::collections::BTreeMap<String, u64>,
}

impl JetStream {
    /// Makes requests over this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Creates the stream, or gives an existing one this configuration.
    pub async fn ensure_stream(&self, config: &StreamConfig) -> Result<StreamInfo, JetStreamError> {
        let name = &config.name;
        match self.api(&format!("STREAM.CREATE.{name}"), config).await {
            Err(JetStreamError::Refused { code, .. }) if code == STREAM_NAME_IN_USE => {
                self.api(&format!("STREAM.UPDATE.{name}"), config).await
            }
            made => made,
        }
    }

    /// Returns the state of a stream.
    pub async fn stream_info(&self, name: &str) -> Result<StreamInfo, JetStreamError> {
        self.api(&format!("STREAM.INFO.{name}"), &json!({})).await
    }

    /// Returns the subjects under `filter` that have messages.
    pub async fn subjects(&self, name: &str, filter: &str) -> Result<Vec<String>, JetStreamError> {
        let body = json!({ "subjects_filter": filter });
        let found: Subjects = self.api(&format!("STREAM.INFO.{name}"), &body).await?;
        Ok(found.state.subjects.into_keys().collect())
    }

    /// Removes a stream with its messages and consumers.
    pub async fn delete_stream(&self, name: &str) -> Result<(), JetStreamError> {
        let _: serde_json::Value = self
            .api(&format!("STREAM.DELETE.{name}"), &json!({}))
            .await?;
        Ok(())
    }

    /// Removes the messages in front of `before`.
    pub async fn purge_before(&self, name: &str, before: u64) -> Result<(), JetStreamError> {
        self.purge(name, &json!({ "seq": before })).await
    }

    /// Removes the messages on a subject, which may have wildcards.
    pub async fn purge_subject(&self, name: &str, subject: &str) -> Result<(), JetStreamError> {
        self.purge(name, &json!({ "filter": subject })).await
    }

    async fn purge(&self, name: &str, body: &serde_json::Value) -> Result<(), JetStreamError> {
        let _: serde_json::Value = self.api(&format!("STREAM.PURGE.{name}"), body).await?;
        Ok(())
    }

    /// Removes one message.
    pub async fn delete_message(&self, name: &str, seq: u64) -> Result<(), JetStreamError> {
        let body = json!({ "seq": seq, "no_erase": true });
        let _: serde_json::Value = self
            .api(&format!("STREAM.MSG.DELETE.{name}"), &body)
            .await?;
        Ok(())
    }

    /// Returns the last message on a subject.
    pub async fn last_message(
        &self,
        name: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, JetStreamError> {
        self.stored(name, &json!({ "last_by_subj": subject })).await
    }

    /// Returns the first message from a sequence on, on a subject.
    pub async fn next_message(
        &self,
        name: &str,
        from: u64,
        subject: &str,
    ) -> Result<Option<StoredMessage>, JetStreamError> {
        self.stored(name, &json!({ "seq": from, "next_by_subj": subject }))
            .await
    }

    async fn stored(
        &self,
        name: &str,
        body: &serde_json::Value,
    ) -> Result<Option<StoredMessage>, JetStreamError> {
        let subject = format!("STREAM.MSG.GET.{name}");
        let reply: StoredReply = match self.api(&subject, body).await {
            Ok(reply) => reply,
            Err(JetStreamError::Refused { code, .. }) if code == NO_MESSAGE_FOUND => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let decoded = |text: &str| {
            STANDARD
                .decode(text)
                .map_err(|error| JetStreamError::Unreadable {
                    subject: subject.clone(),
                    reason: error.to_string(),
                })
        };
        Ok(Some(StoredMessage {
            headers: String::from_utf8_lossy(&decoded(&reply.message.hdrs)?).into_owned(),
            payload: decoded(&reply.message.data)?,
            subject: reply.message.subject,
            seq: reply.message.seq,
            time: reply.message.time,
        }))
    }

    /// Creates a durable pull consumer that acknowledges all messages up to one at once. An
    /// existing one of the same configuration stays as it is.
    pub async fn ensure_consumer(
        &self,
        stream: &str,
        config: &ConsumerConfig,
    ) -> Result<ConsumerInfo, JetStreamError> {
        let name = &config.name;
        let body = json!({
            "stream_name": stream,
            "config": {
                "durable_name": name,
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": config.from.max(1),
                "ack_policy": "all",
                "ack_wait": nanoseconds(Duration::from_secs(30)),
                "max_deliver": -1,
                "max_ack_pending": config.max_unacknowledged,
                "max_waiting": 16,
                "replay_policy": "instant",
                "inactive_threshold": nanoseconds(config.inactive_after),
            },
        });
        self.api(&format!("CONSUMER.DURABLE.CREATE.{stream}.{name}"), &body)
            .await
    }

    /// Returns the state of a consumer.
    pub async fn consumer_info(
        &self,
        stream: &str,
        name: &str,
    ) -> Result<ConsumerInfo, JetStreamError> {
        self.api(&format!("CONSUMER.INFO.{stream}.{name}"), &json!({}))
            .await
    }

    /// Removes a consumer; one that does not exist is no error.
    pub async fn delete_consumer(&self, stream: &str, name: &str) -> Result<(), JetStreamError> {
        let subject = format!("CONSUMER.DELETE.{stream}.{name}");
        match self.api::<serde_json::Value>(&subject, &json!({})).await {
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }

    /// Starts a consumer that pushes messages to `inbox` until the connection ends, without
    /// acknowledgements: the last message of each subject and all later ones (`latest`), or all.
    pub(crate) async fn push_to(
        &self,
        stream: &str,
        subject: &str,
        inbox: &str,
        latest: bool,
    ) -> Result<ConsumerInfo, JetStreamError> {
        let body = json!({
            "stream_name": stream,
            "config": {
                "deliver_subject": inbox,
                "deliver_policy": if latest { "last_per_subject" } else { "all" },
                "filter_subject": subject,
                "ack_policy": "none",
                "max_deliver": 1,
                "replay_policy": "instant",
                "mem_storage": true,
                "inactive_threshold": nanoseconds(Duration::from_secs(30)),
            },
        });
        self.api(&format!("CONSUMER.CREATE.{stream}"), &body).await
    }

    /// Reads the messages on a subject, from a sequence up to the last one at present.
    pub async fn read(
        &self,
        stream: &str,
        subject: &str,
        from: u64,
    ) -> Result<StreamReader, JetStreamError> {
        let body = json!({
            "stream_name": stream,
            "config": {
                "deliver_policy": "by_start_sequence",
                "opt_start_seq": from.max(1),
                "filter_subject": subject,
                "ack_policy": "all",
                "ack_wait": nanoseconds(Duration::from_secs(600)),
                "max_ack_pending": -1,
                "replay_policy": "instant",
                "mem_storage": true,
                "inactive_threshold": nanoseconds(Duration::from_secs(30)),
            },
        });
        let made: ConsumerInfo = self
            .api(&format!("CONSUMER.CREATE.{stream}"), &body)
            .await?;
        let inbox = self.client.new_inbox();
        let messages = self.subscribe(&inbox).await?;
        Ok(StreamReader {
            jetstream: self.clone(),
            stream: stream.to_owned(),
            consumer: made.name,
            inbox,
            messages,
            left: made.num_pending,
            asked: 0,
        })
    }

    /// Subscribes to a subject.
    pub async fn subscribe(&self, subject: &str) -> Result<Subscriber, JetStreamError> {
        let subscribed = self.client.subscribe(subject.to_owned()).await;
        subscribed.map_err(|error| JetStreamError::NoAnswer {
            subject: subject.to_owned(),
            reason: error.to_string(),
        })
    }

    /// Asks for up to `batch` messages of a consumer, sent to `inbox`; after `expires` the server
    /// ends the request with a status message.
    pub async fn pull(
        &self,
        (stream, consumer): (&str, &str),
        inbox: &str,
        batch: u32,
        expires: Duration,
    ) -> Result<(), JetStreamError> {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        let body = json!({ "batch": batch, "expires": nanoseconds(expires) });
        let sent = self
            .client
            .publish_with_reply(subject.clone(), inbox.to_owned(), body.to_string().into())
            .await;
        sent.map_err(|error| JetStreamError::NoAnswer {
            subject,
            reason: error.to_string(),
        })
    }

    /// Publishes a message and waits for the stream's acknowledgement.
    pub async fn publish(
        &self,
        subject: &str,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<PublishAck, JetStreamError> {
        let request = Request::new()
            .headers(headers)
            .payload(payload)
            .timeout(Some(PATIENCE));
        let reply = self.send(subject.to_owned(), request).await?;
        read(subject, &reply)
    }

    async fn api<T: DeserializeOwned>(
        &self,
        name: &str,
        body: &impl Serialize,
    ) -> Result<T, JetStreamError> {
        let subject = format!("$JS.API.{name}");
        let body = serde_json::to_vec(body).map_err(|error| JetStreamError::Unreadable {
            subject: subject.clone(),
            reason: error.to_string(),
        })?;
        let request = Request::new().payload(body.into()).timeout(Some(PATIENCE));
        let reply = self.send(subject.clone(), request).await?;
        read(&subject, &reply)
    }

    async fn send(&self, subject: String, request: Request) -> Result<Message, JetStreamError> {
        match self.client.send_request(subject.clone(), request).await {
            Ok(reply) if reply.status == Some(StatusCode::NO_RESPONDERS) => {
                Err(JetStreamError::Nobody { subject })
            }
            Ok(reply) => Ok(reply),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                Err(JetStreamError::Nobody { subject })
            }
            Err(error) => Err(JetStreamError::NoAnswer {
                subject,
                reason: error.to_string(),
            }),
        }
    }
}

/// Reads the server's answer: a value, or an error.
pub(crate) fn read<T: DeserializeOwned>(
    subject: &str,
    reply: &Message,
) -> Result<T, JetStreamError> {
    if let Ok(Failure { error }) = serde_json::from_slice(&reply.payload) {
        return Err(JetStreamError::Refused {
            subject: subject.to_owned(),
            code: if error.err_code == 0 {
                error.code
            } else {
                error.err_code
            },
            description: error.description.chars().take(256).collect(),
        });
    }
    serde_json::from_slice(&reply.payload).map_err(|error| JetStreamError::Unreadable {
        subject: subject.to_owned(),
        reason: error.to_string(),
    })
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
