//! Requests to JetStream: streams, consumers, and acknowledged publications.

mod error;
mod reader;
mod types;

use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, Request, RequestErrorKind, StatusCode, Subscriber};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

use self::error::{NO_MESSAGE_FOUND, STREAM_NAME_IN_USE};
pub(crate) use self::types::nanoseconds;
pub use self::{
    error::JetStreamError,
    reader::StreamReader,
    types::{
        AccountInfo, AccountLimits, ConsumerConfig, ConsumerInfo, DeliveredMessage, PublishAck,
        Storage, StoredMessage, StreamConfig, StreamInfo,
    },
};

/// Time limit of one request.
const PATIENCE: Duration = Duration::from_secs(3);

/// Requests to JetStream over one connection.
#[derive(Clone, Debug)]
pub struct JetStream {
    client: Client,
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

    /// Returns the storage of the account.
    pub async fn account(&self) -> Result<AccountInfo, JetStreamError> {
        self.api("INFO", &json!({})).await
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
