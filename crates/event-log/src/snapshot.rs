//! Snapshots of the index in the object store.
//!
//! A snapshot is uploaded under a new name; then one key, the pointer, is switched to it by its
//! revision; then everything that the pointer does not name is removed. Whoever ends between two
//! steps leaves the snapshot of before whole. A replica that begins writes the pointer anew first,
//! so that one that lost the lock and still runs cannot switch it any more.

use std::{sync::Arc, time::Duration};

use nats_client::{Bucket, BucketConfig, Client, JetStream, JetStreamError, ObjectStore, Storage};
use serde::{Deserialize, Serialize};

use crate::LogNames;

/// Time without a renewal after which the lock is free.
const LOCK_TTL: Duration = Duration::from_secs(10);
/// Chunks between two renewals of the lock.
const CHUNKS_PER_RENEWAL: usize = 32;
/// The key of the pointer, and of the lock.
const KEY: &str = "snapshot";

/// The snapshots of one fleet, over one connection.
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    jetstream: JetStream,
    objects: ObjectStore,
    pointers: Bucket,
    locks: Bucket,
    stream: String,
    replica: Arc<str>,
}

/// The snapshot that is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPointer {
    /// The object; `None`: there is no snapshot yet.
    pub object: Option<String>,
    /// The last message of the log that it covers.
    pub covered: u64,
    /// Creation time of the stream that `covered` belongs to.
    pub stream_created: String,
    /// The replica that made it.
    pub replica: String,
    /// When it was made, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Its size.
    #[serde(default)]
    pub bytes: u64,
}

/// The right to make a snapshot, until it expires.
#[derive(Debug)]
pub struct SnapshotLock {
    revision: u64,
    /// Revision of the pointer that may be replaced.
    pointer: u64,
}

/// A snapshot as it was read.
#[derive(Debug)]
pub struct RestoredSnapshot {
    /// The bytes that its maker saved.
    pub bytes: Vec<u8>,
    /// The message of the log from which on a replica continues.
    pub next: u64,
    /// What the pointer says of it.
    pub pointer: SnapshotPointer,
}

impl SnapshotStore {
    /// Opens the store; `replica` is the name of this process.
    pub async fn open(
        client: &Client,
        names: &LogNames,
        replica: &Arc<str>,
    ) -> Result<Self, JetStreamError> {
        let bucket = |purpose: &str, max_age, storage| BucketConfig {
            name: names.bucket(purpose),
            max_age,
            storage,
        };
        let locks = bucket("locks", Some(LOCK_TTL), Storage::Memory);
        Ok(Self {
            jetstream: JetStream::new(client.clone()),
            objects: ObjectStore::open(client, &names.bucket("snapshots")).await?,
            pointers: Bucket::open(client, &bucket("state", None, Storage::File)).await?,
            locks: Bucket::open(client, &locks).await?,
            stream: names.stream().to_owned(),
            replica: Arc::clone(replica),
        })
    }

    /// Takes the lock; `None`: another replica has it.
    pub async fn lock(&self) -> Result<Option<SnapshotLock>, JetStreamError> {
        let value = self.replica.as_bytes().to_vec();
        let Some(revision) = self.locks.create(KEY, value.into()).await? else {
            return Ok(None);
        };
        let found = self.pointers.get(KEY).await?;
        let (value, before) = found.map_or_else(
            || (encode(&SnapshotPointer::default()), 0),
            |entry| (entry.value, entry.revision),
        );
        let pointer = if before == 0 {
            self.pointers.create(KEY, value.into()).await?
        } else {
            self.pointers.update(KEY, value.into(), before).await?
        };
        Ok(pointer.map(|pointer| SnapshotLock { revision, pointer }))
    }

    /// Renews the lock; returns whether it was still held.
    pub async fn renew(&self, lock: &mut SnapshotLock) -> Result<bool, JetStreamError> {
        let value = self.replica.as_bytes().to_vec();
        let renewed = self.locks.update(KEY, value.into(), lock.revision).await?;
        if let Some(revision) = renewed {
            lock.revision = revision;
        }
        Ok(renewed.is_some())
    }

    /// Gives the lock back.
    pub async fn unlock(&self, lock: SnapshotLock) -> Result<(), JetStreamError> {
        self.locks.delete(KEY, lock.revision).await?;
        Ok(())
    }

    /// Returns the snapshot in force.
    pub async fn pointer(&self) -> Result<Option<SnapshotPointer>, JetStreamError> {
        let entry = self.pointers.get(KEY).await?;
        Ok(entry
            .and_then(|entry| serde_json::from_slice::<SnapshotPointer>(&entry.value).ok())
            .filter(|pointer| pointer.object.is_some()))
    }

    /// Uploads a snapshot under a new name, without putting it in force; `None`: the lock was lost.
    pub async fn upload(
        &self,
        lock: &mut SnapshotLock,
        bytes: &[u8],
    ) -> Result<Option<String>, JetStreamError> {
        let object = format!("{}-{}", self.replica, lock.pointer);
        for number in 0..ObjectStore::chunks_of(bytes) {
            if number % CHUNKS_PER_RENEWAL == 0 && !self.renew(lock).await? {
                return Ok(None);
            }
            self.objects.put_chunk(&object, bytes, number).await?;
        }
        self.objects.describe(&object, bytes).await?;
        Ok(Some(object))
    }

    /// Puts an uploaded snapshot in force; returns whether this replica was still entitled to.
    pub async fn switch(
        &self,
        lock: &mut SnapshotLock,
        pointer: &SnapshotPointer,
    ) -> Result<bool, JetStreamError> {
        let value = encode(pointer).into();
        let written = self.pointers.update(KEY, value, lock.pointer).await?;
        if let Some(revision) = written {
            lock.pointer = revision;
        }
        Ok(written.is_some())
    }

    /// Removes every object that is not in force.
    pub async fn remove_others(&self) -> Result<(), JetStreamError> {
        let kept = self.pointer().await?.and_then(|pointer| pointer.object);
        self.objects.remove_others(kept.as_deref()).await
    }

    /// Removes the messages of the log up to this one.
    pub async fn purge_log(&self, covered: u64) -> Result<(), JetStreamError> {
        self.jetstream.purge_before(&self.stream, covered + 1).await
    }

    /// Reads the snapshot in force, of at most `limit` bytes.
    pub async fn restore(&self, limit: u64) -> Result<Option<RestoredSnapshot>, JetStreamError> {
        let Some((pointer, bytes)) = self.read(limit).await? else {
            return Ok(None);
        };
        // Another stream of the same name counts from 1 again, and has only what came later.
        let created = match self.jetstream.stream_info(&self.stream).await {
            Ok(info) => info.created,
            Err(error) if error.is_missing() => String::new(),
            Err(error) => return Err(error),
        };
        let next = if created == pointer.stream_created {
            pointer.covered + 1
        } else {
            1
        };
        Ok(Some(RestoredSnapshot {
            bytes,
            next,
            pointer,
        }))
    }

    /// Reads the object in force. One that was replaced meanwhile is removed in front of the
    /// reader, whose next attempt finds its successor.
    async fn read(&self, limit: u64) -> Result<Option<(SnapshotPointer, Vec<u8>)>, JetStreamError> {
        loop {
            let Some(pointer) = self.pointer().await? else {
                return Ok(None);
            };
            let Some(object) = &pointer.object else {
                return Ok(None);
            };
            let is_replaced = async || match self.pointer().await {
                Ok(Some(now)) => now.object != pointer.object,
                _ => false,
            };
            let found = self.objects.get(object, limit).await;
            if let Ok(Some(bytes)) = found {
                return Ok(Some((pointer, bytes)));
            }
            if !is_replaced().await {
                return found.map(|_| None);
            }
        }
    }

    /// Discards the log and all snapshots.
    pub(crate) async fn discard(&self) -> Result<(), JetStreamError> {
        if let Some(entry) = self.pointers.get(KEY).await? {
            self.pointers.delete(KEY, entry.revision).await?;
        }
        self.objects.remove_others(None).await?;
        match self.jetstream.delete_stream(&self.stream).await {
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }
}

fn encode(pointer: &SnapshotPointer) -> Vec<u8> {
    // A struct of texts and numbers is always JSON.
    serde_json::to_vec(pointer).unwrap_or_default()
}
