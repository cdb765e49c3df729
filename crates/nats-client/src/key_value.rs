//! Buckets of keys with revisions, as NATS lays them out: a stream that keeps the last message of
//! each subject.

use std::time::Duration;

use async_nats::{Client, HeaderMap, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;

use crate::{
    DeliveredMessage, JetStream, JetStreamError, Storage, StreamConfig, jetstream::nanoseconds,
};

const OPERATION: &str = "KV-Operation";
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";

/// The configuration of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketConfig {
    /// Its name.
    pub name: String,
    /// Time after which a value disappears unless it is written again; `None`: never.
    pub max_age: Option<Duration>,
    /// Where it keeps its values.
    pub storage: Storage,
}

/// A bucket over one connection.
#[derive(Clone, Debug)]
pub struct Bucket {
    jetstream: JetStream,
    name: String,
}

/// A value with its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Vec<u8>,
    /// Its revision: that of the whole bucket when it was written.
    pub revision: u64,
    /// When it was written by the clock of the server, RFC 3339.
    pub time: String,
}

/// A change of a key. Values that expire are not reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// A value was written.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Bytes,
        /// Its revision.
        revision: u64,
    },
    /// A value was deleted.
    Deleted {
        /// The key.
        key: String,
        /// The revision of the deletion.
        revision: u64,
    },
    /// All values that were in the bucket at the start have been reported.
    Current,
}

/// The changes of a bucket from its present values on.
#[derive(Debug)]
pub struct KeyWatch {
    jetstream: JetStream,
    stream: String,
    /// The name of its consumer at the server.
    consumer: String,
    subscriber: Subscriber,
    prefix: String,
    expected: u64,
    /// Values of the start that are still to come; `None`: [`KeyChange::Current`] was reported.
    initial: Option<u64>,
}

impl Bucket {
    /// Creates the bucket, or opens an existing one.
    pub async fn open(client: &Client, config: &BucketConfig) -> Result<Self, JetStreamError> {
        let jetstream = JetStream::new(client.clone());
        let name = config.name.clone();
        let mut stream = StreamConfig::new(format!("KV_{name}"), vec![format!("$KV.{name}.>")]);
        stream.max_msgs_per_subject = 1;
        stream.storage = config.storage;
        stream.allow_rollup_hdrs = true;
        stream.discard = "new".to_owned();
        if let Some(age) = config.max_age {
            stream = stream.max_age(age);
        }
        stream.duplicate_window = stream
            .duplicate_window
            .min(nanoseconds(config.max_age.unwrap_or(Duration::MAX)));
        jetstream.ensure_stream(&stream).await?;
        Ok(Self { jetstream, name })
    }

    fn stream(&self) -> String {
        format!("KV_{}", self.name)
    }

    fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.name)
    }

    /// Returns the value of a key.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, JetStreamError> {
        let subject = self.subject(key);
        let stored = self
            .jetstream
            .last_message(&self.stream(), &subject)
            .await?;
        Ok(stored
            .filter(|stored| !stored.headers.contains(OPERATION))
            .map(|stored| Entry {
                value: stored.payload,
                revision: stored.seq,
                time: stored.time,
            }))
    }

    /// Returns the keys that have a value.
    pub async fn keys(&self) -> Result<Vec<String>, JetStreamError> {
        let subject = self.subject("");
        let found = self
            .jetstream
            .subjects(&self.stream(), &format!("{subject}>"))
            .await?;
        let mut keys = Vec::new();
        for key in found
            .iter()
            .filter_map(|found| found.strip_prefix(&subject))
        {
            if self.get(key).await?.is_some() {
                keys.push(key.to_owned());
            }
        }
        Ok(keys)
    }

    /// Writes a value, whatever was there; returns its revision.
    pub async fn put(&self, key: &str, value: Bytes) -> Result<u64, JetStreamError> {
        self.write(key, HeaderMap::new(), value).await
    }

    /// Writes a value if the key has none; `None`: it has one.
    pub async fn create(&self, key: &str, value: Bytes) -> Result<Option<u64>, JetStreamError> {
        if let Some(revision) = self.update(key, value.clone(), 0).await? {
            return Ok(Some(revision));
        }
        // A deleted key keeps a last message, in place of which the value is written.
        let subject = self.subject(key);
        let stored = self
            .jetstream
            .last_message(&self.stream(), &subject)
            .await?;
        match stored {
            Some(stored) if stored.headers.contains(OPERATION) => {
                self.update(key, value, stored.seq).await
            }
            Some(_) => Ok(None),
            None => self.update(key, value, 0).await,
        }
    }

    /// Writes a value in place of that with this revision; `None`: another one is there.
    pub async fn update(
        &self,
        key: &str,
        value: Bytes,
        revision: u64,
    ) -> Result<Option<u64>, JetStreamError> {
        self.compare_and_write(key, HeaderMap::new(), (value, revision))
            .await
    }

    /// Deletes the value with this revision; returns whether it was there.
    pub async fn delete(&self, key: &str, revision: u64) -> Result<bool, JetStreamError> {
        let mut headers = HeaderMap::new();
        headers.insert(OPERATION, "DEL");
        let written = self.compare_and_write(key, headers, (Bytes::new(), revision));
        Ok(written.await?.is_some())
    }

    /// Removes the message that the deletion with this revision left in the bucket.
    pub async fn forget_deletion(&self, revision: u64) -> Result<(), JetStreamError> {
        match self
            .jetstream
            .delete_message(&self.stream(), revision)
            .await
        {
            // Another process did it, or the key was written again. The server has one code for
            // that and for other reasons, and the deletion may stay.
            Err(JetStreamError::Refused { .. }) => Ok(()),
            forgotten => forgotten,
        }
    }

    async fn compare_and_write(
        &self,
        key: &str,
        mut headers: HeaderMap,
        (value, revision): (Bytes, u64),
    ) -> Result<Option<u64>, JetStreamError> {
        headers.insert(EXPECTED, revision.to_string().as_str());
        match self.write(key, headers, value).await {
            Ok(revision) => Ok(Some(revision)),
            Err(error) if error.is_other_revision() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn write(
        &self,
        key: &str,
        headers: HeaderMap,
        value: Bytes,
    ) -> Result<u64, JetStreamError> {
        let subject = self.subject(key);
        let ack = self.jetstream.publish(&subject, headers, value).await?;
        Ok(ack.seq)
    }

    /// Watches all keys, beginning with their present values.
    pub async fn watch(&self) -> Result<KeyWatch, JetStreamError> {
        let client = self.jetstream.client();
        let inbox = client.new_inbox();
        let subject = self.subject(">");
        let subscriber =
            client
                .subscribe(inbox.clone())
                .await
                .map_err(|error| JetStreamError::NoAnswer {
                    subject: subject.clone(),
                    reason: error.to_string(),
                })?;
        let made = self
            .jetstream
            .push_to(&self.stream(), &subject, &inbox, true)
            .await?;
        Ok(KeyWatch {
            jetstream: self.jetstream.clone(),
            stream: self.stream(),
            consumer: made.name,
            subscriber,
            prefix: self.subject(""),
            expected: 1,
            initial: Some(made.num_pending),
        })
    }
}

impl KeyWatch {
    /// Checks whether the server still has the watch. A bucket that was deleted ends it, and
    /// [`Self::next`] would wait for ever.
    pub async fn check(&self) -> Result<(), JetStreamError> {
        let (stream, consumer) = (&self.stream, &self.consumer);
        self.jetstream.consumer_info(stream, consumer).await?;
        Ok(())
    }

    /// Returns the next change; `None`: the connection is over or a change was lost, and the watch
    /// must be started anew. Cancel-safe.
    pub async fn next(&mut self) -> Option<KeyChange> {
        if self.initial == Some(0) {
            self.initial = None;
            return Some(KeyChange::Current);
        }
        let message = self.subscriber.next().await?;
        let delivered = DeliveredMessage::of(&message)?;
        if delivered.consumer_seq != self.expected {
            return None;
        }
        self.expected += 1;
        self.initial = self.initial.map(|_| delivered.pending);
        let key = message
            .subject
            .as_str()
            .strip_prefix(&self.prefix)?
            .to_owned();
        let revision = delivered.stream_seq;
        let is_deletion = message
            .headers
            .as_ref()
            .is_some_and(|headers| headers.get(OPERATION).is_some());
        Some(if is_deletion {
            KeyChange::Deleted { key, revision }
        } else {
            KeyChange::Put {
                key,
                value: message.payload,
                revision,
            }
        })
    }
}
