//! The tasks that follow the bucket, apply what it has, and write to it.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream};
use nats_client::{
    Bucket, BucketConfig, Client, JetStreamError, KeyChange, KeyWatch, SharedConnection, Storage,
    backoff,
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
    /// Drains those of [`Registrations::drained`] that are not: a worker may have come after its
    /// drain. It may block.
    fn drain(&self, registrations: &Registrations);
}

/// Why the bucket is read again.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error(transparent)]
    JetStream(#[from] JetStreamError),
    #[error("a change of the bucket was lost")]
    LostChange,
    #[error("the bucket does not show what was written to it")]
    LostWrite,
    #[error("changes were not applied: {0}")]
    NotApplied(String),
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
        // Its state is large: requests to the server, and a batch of writes.
        let follow = Box::pin(self.follow_connections(&sink));
        tokio::join!(follow, self.tick(&sink));
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
            if self.registrations.tick(retry)
                && let Err(error) = self.apply(sink).await
            {
                tracing::error!(%error, "the replicas' workers are applied again");
            }
            if !self.registrations.drained().is_empty() {
                let drained = self.call(sink, |sink, registrations| sink.drain(registrations));
                if let Err(error) = drained.await {
                    tracing::error!(%error, "the replicas' drains are applied again");
                }
            }
        }
    }

    async fn apply(&self, sink: &Arc<dyn RegistrationSink>) -> Result<(), SyncError> {
        let applied = self.call(sink, |sink, registrations| sink.apply(registrations));
        let applied = applied.await;
        if applied.is_err() {
            // Those that were taken and not answered.
            self.registrations.repeat_changes();
        }
        applied
    }

    /// Calls the sink on a thread that may block.
    async fn call(
        &self,
        sink: &Arc<dyn RegistrationSink>,
        call: fn(&dyn RegistrationSink, &Registrations),
    ) -> Result<(), SyncError> {
        let (registrations, sink) = (Arc::clone(&self.registrations), Arc::clone(sink));
        let called = runtime::spawn_blocking(move || call(&*sink, &registrations)).await;
        called.map_err(|error| SyncError::NotApplied(error.to_string()))
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
    ) -> Result<Infallible, SyncError> {
        let config = BucketConfig {
            name: self.bucket.clone(),
            max_age: None,
            // It outlives all routers, and the server.
            storage: Storage::File,
        };
        let bucket = Bucket::open(client, &config).await?;
        let mut changes = bucket.watch().await?;
        self.registrations.begin_read();
        let mut checks = interval(RETRY_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = changes.next() => self.observe(change)?,
                () = self.registrations.changed.notified() => {}
                _ = checks.tick() => self.check(&changes).await?,
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
                self.apply(sink).await?;
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

    /// Checks whether changes of the bucket still arrive.
    async fn check(&self, watch: &KeyWatch) -> Result<(), SyncError> {
        if self.registrations.has_lost_write() {
            return Err(SyncError::LostWrite);
        }
        Ok(watch.check().await?)
    }

    fn observe(&self, change: Option<KeyChange>) -> Result<(), SyncError> {
        match change {
            None => return Err(SyncError::LostChange),
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
