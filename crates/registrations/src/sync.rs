//! The tasks that follow the bucket, apply what it has, and write to it.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream};
use nats_client::{
    Bucket, BucketConfig, Client, JetStreamError, KeyChange, SharedConnection, Storage, backoff,
};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{
    Registrations,
    registrations::{RETRY_INTERVAL, Retry},
    table::KeyWrite,
};

/// Interval of checks for ended leases.
const TICK: Duration = Duration::from_secs(1);
/// Most writes at once.
const WRITES: usize = 32;
/// Most changes of the bucket that are applied together.
const BATCH: usize = 1024;

/// The router's own workers, which follow the shared ones.
pub trait RegistrationSink: fmt::Debug + Send + Sync {
    /// Makes the changes that [`Registrations::changes`] has. It may block.
    fn apply(&self, registrations: &Registrations);
    /// Drains those of these workers that are not: a worker may have come after its drain.
    fn drain(&self, workers: &[String]);
}

/// Keeps this router and the bucket equal.
#[derive(Clone, Debug)]
pub struct RegistrationSync {
    /// The shared workers.
    pub registrations: Arc<Registrations>,
    /// The connection to the server.
    pub connection: Arc<SharedConnection>,
    /// The name of the bucket.
    pub bucket: String,
}

impl RegistrationSync {
    /// Follows and writes until it is dropped.
    pub async fn run(&self, sink: Arc<dyn RegistrationSink>) {
        tokio::join!(self.follow_connections(&sink), self.tick(&sink));
    }

    /// Ends leases and applies changes also while the bucket is away.
    async fn tick(&self, sink: &Arc<dyn RegistrationSink>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut since_retry = Duration::ZERO;
        loop {
            ticks.tick().await;
            since_retry += TICK;
            let mut retry = Retry::Nothing;
            if since_retry >= RETRY_INTERVAL {
                since_retry = Duration::ZERO;
                retry = Retry::Refused;
            }
            if self.registrations.tick(retry) {
                self.apply(sink).await;
            }
            let drained = self.registrations.drained();
            if !drained.is_empty() {
                sink.drain(&drained);
            }
        }
    }

    async fn apply(&self, sink: &Arc<dyn RegistrationSink>) {
        let (registrations, sink) = (Arc::clone(&self.registrations), Arc::clone(sink));
        let applied = runtime::spawn_blocking(move || sink.apply(&registrations)).await;
        if let Err(error) = applied {
            tracing::error!(%error, "changes of the replicas' workers were not applied");
        }
    }

    async fn follow_connections(&self, sink: &Arc<dyn RegistrationSink>) {
        let mut connection = self.connection.watch();
        let mut backoff = backoff::reconnects();
        let mut last_error = None;
        loop {
            let Some((client, number)) = next_client(&mut connection).await else {
                return;
            };
            let started = self.registrations.clock.now();
            let failed = tokio::select! {
                failed = self.use_connection(sink, &client) => failed,
                _ = connection.wait_for(|now| now.connections != number || now.client.is_none()) => {
                    // The connection's owner logs its end.
                    self.registrations.disconnected();
                    continue;
                }
            };
            let Err(error) = failed;
            let error = error.to_string();
            if self.registrations.is_current() || last_error.as_ref() != Some(&error) {
                tracing::warn!(error, "the replicas' workers are not shared for now");
                last_error = Some(error);
            }
            self.registrations.disconnected();
            let lasted = self.registrations.clock.now().since(started);
            sleep(backoff::wait(&mut backoff, lasted, runtime::chance())).await;
        }
    }

    /// Follows the bucket and writes to it until it fails.
    async fn use_connection(
        &self,
        sink: &Arc<dyn RegistrationSink>,
        client: &Client,
    ) -> Result<Infallible, JetStreamError> {
        let config = BucketConfig {
            name: self.bucket.clone(),
            max_age: None,
            // It outlives all routers, and the server.
            storage: Storage::File,
        };
        let bucket = Bucket::open(client, &config).await?;
        let mut changes = bucket.watch().await?;
        self.registrations.begin_read();
        loop {
            tokio::select! {
                change = changes.next() => self.observe(change)?,
                () = self.registrations.changed.notified() => {}
            }
            for _ in 0..BATCH {
                match changes.next().now_or_never() {
                    Some(change) => self.observe(change)?,
                    None => break,
                }
            }
            if !self.registrations.is_current() {
                continue;
            }
            if self.registrations.has_changes() {
                self.apply(sink).await;
            }
            self.registrations.first_read.send_replace(true);
            let writes = self.registrations.writes();
            let mut written = stream::iter(writes)
                .map(|item| write(&bucket, item))
                .buffer_unordered(WRITES);
            while let Some(outcome) = written.next().await {
                outcome?;
            }
        }
    }

    fn observe(&self, change: Option<KeyChange>) -> Result<(), JetStreamError> {
        match change {
            None => {
                return Err(JetStreamError::NoAnswer {
                    subject: "the keys of the workers".to_owned(),
                    reason: "a change was lost".to_owned(),
                });
            }
            Some(KeyChange::Current) => self.registrations.end_read(),
            Some(KeyChange::Put {
                key,
                value,
                revision,
            }) => self.registrations.observe(&key, (&value, revision)),
            Some(KeyChange::Deleted { key, revision }) => {
                self.registrations.observe_deletion(&key, revision);
            }
        }
        Ok(())
    }
}

/// Waits for a connection; returns it with its number.
async fn next_client(
    connection: &mut watch::Receiver<nats_client::ConnectionState>,
) -> Option<(Client, u64)> {
    let state = connection.wait_for(|state| state.client.is_some()).await;
    let state = state.ok()?;
    Some((state.client.clone()?, state.connections))
}

/// Writes to the bucket. If the key has another revision, the watch reports it, and the table has
/// the write made again.
async fn write(bucket: &Bucket, item: KeyWrite) -> Result<(), JetStreamError> {
    match item {
        KeyWrite::Put {
            key,
            revision: Some(revision),
            value,
        } => drop(bucket.update(&key, value.into(), revision).await?),
        KeyWrite::Put {
            key,
            revision: None,
            value,
        } => drop(bucket.create(&key, value.into()).await?),
        KeyWrite::Delete { key, revision } => drop(bucket.delete(&key, revision).await?),
        KeyWrite::ForgetDeletion { revision } => bucket.forget_deletion(revision).await?,
    }
    Ok(())
}
