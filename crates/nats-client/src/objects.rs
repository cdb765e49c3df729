//! Large values, as NATS lays them out: a stream with one subject for the chunks of an object and
//! one for its description.

use async_nats::{Client, HeaderMap};
use base64::{Engine, engine::general_purpose::URL_SAFE};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::{Duration, timeout};

use crate::{DeliveredMessage, JetStream, JetStreamError, StreamConfig};

/// Bytes of a chunk; the tools of NATS use the same.
const CHUNK: usize = 128 * 1024;
/// Longest wait for the next chunk of a download.
const PATIENCE: Duration = Duration::from_secs(5);

/// A store of objects over one connection.
#[derive(Clone, Debug)]
pub struct ObjectStore {
    jetstream: JetStream,
    name: String,
}

/// The description of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// Its name.
    pub name: String,
    /// The name of the store.
    #[serde(default)]
    pub bucket: String,
    /// The name of its chunks.
    pub nuid: String,
    /// Its bytes.
    pub size: u64,
    /// Its number of chunks.
    pub chunks: u64,
    /// `SHA-256=` and the digest, base64.
    #[serde(default)]
    pub digest: String,
    /// Whether it was deleted.
    #[serde(default)]
    pub deleted: bool,
}

impl ObjectStore {
    /// Creates the store, or opens an existing one.
    pub async fn open(client: &Client, name: &str) -> Result<Self, JetStreamError> {
        let subjects = vec![format!("$O.{name}.C.>"), format!("$O.{name}.M.>")];
        let mut stream = StreamConfig::new(format!("OBJ_{name}"), subjects);
        stream.discard = "new".to_owned();
        stream.allow_rollup_hdrs = true;
        let jetstream = JetStream::new(client.clone());
        jetstream.ensure_stream(&stream).await?;
        Ok(Self {
            jetstream,
            name: name.to_owned(),
        })
    }

    fn stream(&self) -> String {
        format!("OBJ_{}", self.name)
    }

    fn chunks(&self, nuid: &str) -> String {
        format!("$O.{}.C.{nuid}", self.name)
    }

    fn description(&self, name: &str) -> String {
        format!("$O.{}.M.{}", self.name, URL_SAFE.encode(name))
    }

    /// Returns the number of chunks that an object of this size has.
    pub fn chunks_of(bytes: &[u8]) -> usize {
        bytes.len().div_ceil(CHUNK)
    }

    /// Stores one chunk of an object that [`ObjectStore::describe`] completes.
    pub async fn put_chunk(
        &self,
        object: &str,
        bytes: &[u8],
        number: usize,
    ) -> Result<(), JetStreamError> {
        let start = (number * CHUNK).min(bytes.len());
        let end = (start + CHUNK).min(bytes.len());
        let chunk = Bytes::copy_from_slice(&bytes[start..end]);
        self.jetstream
            .publish(&self.chunks(object), HeaderMap::new(), chunk)
            .await?;
        Ok(())
    }

    /// Describes an object whose chunks are stored; from then on it can be read.
    pub async fn describe(&self, object: &str, bytes: &[u8]) -> Result<ObjectInfo, JetStreamError> {
        let info = ObjectInfo {
            name: object.to_owned(),
            bucket: self.name.clone(),
            nuid: object.to_owned(),
            size: bytes.len() as u64,
            chunks: Self::chunks_of(bytes) as u64,
            digest: digest(bytes),
            deleted: false,
        };
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Rollup", "sub");
        let subject = self.description(object);
        let body = serde_json::to_vec(&info).map_err(|error| self.unreadable(object, error))?;
        self.jetstream
            .publish(&subject, headers, body.into())
            .await?;
        Ok(info)
    }

    /// Stores an object, chunk by chunk.
    pub async fn put(&self, object: &str, bytes: &[u8]) -> Result<ObjectInfo, JetStreamError> {
        for number in 0..Self::chunks_of(bytes) {
            self.put_chunk(object, bytes, number).await?;
        }
        self.describe(object, bytes).await
    }

    /// Reads an object of at most `limit` bytes and checks its digest; `None`: there is none.
    pub async fn get(&self, object: &str, limit: u64) -> Result<Option<Vec<u8>>, JetStreamError> {
        let stored = self
            .jetstream
            .last_message(&self.stream(), &self.description(object))
            .await?;
        let Some(stored) = stored else {
            return Ok(None);
        };
        let info: ObjectInfo = serde_json::from_slice(&stored.payload)
            .map_err(|error| self.unreadable(object, error))?;
        if info.deleted {
            return Ok(None);
        }
        if info.size > limit {
            let reason = format!("it has {} bytes, at most {limit} are read", info.size);
            return Err(self.unreadable(object, reason));
        }
        let bytes = self.download(object, &info).await?;
        if bytes.len() as u64 != info.size || digest(&bytes) != info.digest {
            return Err(self.unreadable(object, "its digest does not match its description"));
        }
        Ok(Some(bytes))
    }

    async fn download(&self, object: &str, info: &ObjectInfo) -> Result<Vec<u8>, JetStreamError> {
        let client = self.jetstream.client();
        let inbox = client.new_inbox();
        let mut chunks = client
            .subscribe(inbox.clone())
            .await
            .map_err(|error| self.unreadable(object, error))?;
        let subject = self.chunks(&info.nuid);
        if info.chunks > 0 {
            self.jetstream
                .push_to(&self.stream(), &subject, &inbox, false)
                .await?;
        }
        let mut bytes = Vec::new();
        for number in 1..=info.chunks {
            let chunk = timeout(PATIENCE, chunks.next())
                .await
                .map_err(|_| self.unreadable(object, "a chunk did not come in time"))?
                .ok_or_else(|| self.unreadable(object, "the connection was lost"))?;
            let delivered = DeliveredMessage::of(&chunk);
            if delivered.is_none_or(|delivered| delivered.consumer_seq != number) {
                return Err(self.unreadable(object, "a chunk was lost"));
            }
            if (bytes.len() + chunk.payload.len()) as u64 > info.size {
                return Err(self.unreadable(object, "it is longer than its description says"));
            }
            bytes.extend_from_slice(&chunk.payload);
        }
        Ok(bytes)
    }

    /// Removes all objects but this one, and chunks that no description names.
    pub async fn remove_others(&self, kept: Option<&str>) -> Result<(), JetStreamError> {
        let stream = self.stream();
        let spared = kept.map(|kept| (self.chunks(kept), self.description(kept)));
        let all = format!("$O.{}.>", self.name);
        for subject in self.jetstream.subjects(&stream, &all).await? {
            let is_kept = spared
                .as_ref()
                .is_some_and(|(chunks, description)| subject == *chunks || subject == *description);
            if !is_kept {
                self.jetstream.purge_subject(&stream, &subject).await?;
            }
        }
        Ok(())
    }

    fn unreadable(&self, object: &str, reason: impl ToString) -> JetStreamError {
        JetStreamError::Unreadable {
            subject: format!("the object {object} of {}", self.name),
            reason: reason.to_string(),
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("SHA-256={}", URL_SAFE.encode(Sha256::digest(bytes)))
}
