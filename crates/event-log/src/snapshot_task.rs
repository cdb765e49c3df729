//! When a snapshot is made, and by whom.

use std::{fmt, sync::Arc, time::Duration};

use nats_client::{Client, JetStream, JetStreamError};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    EventLog, SnapshotReport,
    snapshot::{SnapshotLock, SnapshotPointer, SnapshotStore},
};

/// Interval of checks, before jitter.
const CHECK: Duration = Duration::from_secs(5);

/// What a snapshot is made of.
pub trait SnapshotSource: fmt::Debug + Send + Sync {
    /// Returns the bytes of a snapshot. Called on a blocking thread.
    fn save(&self) -> Result<Vec<u8>, String>;
}

/// When a snapshot is due.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotSettings {
    /// Messages without a snapshot after which one is made.
    pub threshold: u64,
    /// Retention time of the log: a snapshot is made before half of it passed for a message that
    /// none covers.
    pub retention: Duration,
}

/// Makes snapshots while it lives.
#[derive(Debug)]
pub struct SnapshotTask {
    task: JoinHandle<()>,
}

impl Drop for SnapshotTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SnapshotSettings {
    /// Returns whether a snapshot is due: for this many messages without one, the oldest of this
    /// age.
    fn is_due(&self, uncovered: u64, oldest: Duration) -> bool {
        uncovered > self.threshold || (uncovered > 0 && oldest > self.retention / 2)
    }
}

impl SnapshotTask {
    /// Starts it in the current runtime.
    pub fn spawn(
        log: Arc<EventLog>,
        source: Arc<dyn SnapshotSource>,
        settings: SnapshotSettings,
    ) -> Self {
        let task = runtime::spawn(async move {
            loop {
                sleep(CHECK.mul_f64(1.0 + runtime::chance() / 2.0)).await;
                match check(&log, &source, settings).await {
                    Ok(None) => {}
                    Ok(Some(pointer)) => tracing::info!(
                        covered = pointer.covered,
                        object = pointer.object,
                        "snapshot of the index stored"
                    ),
                    Err(error) => tracing::warn!(error, "no snapshot of the index was stored"),
                }
            }
        });
        Self { task }
    }
}

/// Makes a snapshot if one is due and no other replica makes one.
async fn check(
    log: &EventLog,
    source: &Arc<dyn SnapshotSource>,
    settings: SnapshotSettings,
) -> Result<Option<SnapshotPointer>, String> {
    let state = log.state();
    let (Some(client), true) = (state.connection.client(), log.report().connected) else {
        return Ok(None);
    };
    let names = &state.settings.names;
    let text = |error: JetStreamError| error.to_string();
    let store = SnapshotStore::open(&client, names, &state.settings.replica)
        .await
        .map_err(text)?;
    if !is_due(log, &client, &store, settings).await.map_err(text)? {
        return Ok(None);
    }
    let Some(mut lock) = store.lock().await.map_err(text)? else {
        return Ok(None);
    };
    let made = make(log, source, &store, &mut lock).await;
    store.unlock(lock).await.map_err(text)?;
    made
}

async fn is_due(
    log: &EventLog,
    client: &Client,
    store: &SnapshotStore,
    settings: SnapshotSettings,
) -> Result<bool, JetStreamError> {
    let state = log.state();
    let jetstream = JetStream::new(client.clone());
    let stream = state.settings.names.stream();
    let info = jetstream.stream_info(stream).await?;
    let pointer = store
        .pointer()
        .await?
        .filter(|pointer| pointer.stream_created == info.created);
    let covered = pointer.as_ref().map_or(0, |pointer| pointer.covered);
    let first = (covered + 1).max(info.state.first_seq);
    let uncovered = (info.state.last_seq + 1).saturating_sub(first);
    *state.snapshot.lock() = pointer.map(|pointer| SnapshotReport {
        unix_ms: pointer.unix_ms,
        bytes: pointer.bytes,
        messages: uncovered,
    });
    if uncovered == 0 {
        return Ok(false);
    }
    let subjects = state.settings.names.subjects();
    let oldest = jetstream.next_message(stream, first, &subjects).await?;
    // Retention goes by the clock of the server, so age does, too: that of this process may be
    // wrong. Its own key is written every half second.
    let presence = state.presence_bucket(client).await?;
    let now = presence.get(&state.settings.replica).await?;
    let age = oldest
        .zip(now)
        .and_then(|(oldest, now)| time_between(&oldest.time, &now.time))
        .unwrap_or_default();
    Ok(settings.is_due(uncovered, age))
}

/// Returns the time from one of the server's times to a later one.
fn time_between(earlier: &str, later: &str) -> Option<Duration> {
    let read = |text| OffsetDateTime::parse(text, &Rfc3339).ok();
    Duration::try_from(read(later)? - read(earlier)?).ok()
}

/// Uploads a snapshot, puts it in force and removes what it replaces.
async fn make(
    log: &EventLog,
    source: &Arc<dyn SnapshotSource>,
    store: &SnapshotStore,
    lock: &mut SnapshotLock,
) -> Result<Option<SnapshotPointer>, String> {
    let text = |error: JetStreamError| error.to_string();
    let state = log.state();
    let stream_created = state.progress.lock().created.clone();
    // Before the bytes are taken: what is applied meanwhile is in them, too, and repeating it is
    // harmless.
    let covered = log.covered();
    let source = Arc::clone(source);
    let bytes = runtime::spawn_blocking(move || source.save())
        .await
        .map_err(|error| error.to_string())??;
    let size = bytes.len() as u64;
    let Some(object) = store.upload(lock, &bytes).await.map_err(text)? else {
        return Err("the lock was lost during the upload".to_owned());
    };
    let pointer = SnapshotPointer {
        object: Some(object),
        covered,
        stream_created,
        replica: state.settings.replica.to_string(),
        unix_ms: state.clock.unix_ms(),
        bytes: size,
    };
    if !store.switch(lock, &pointer).await.map_err(text)? {
        return Err("another replica made a snapshot meanwhile".to_owned());
    }
    store.remove_others().await.map_err(text)?;
    let purged = covered.min(log.acknowledged_by_all());
    store.purge_log(purged).await.map_err(text)?;
    Ok(Some(pointer))
}

impl EventLog {
    /// Makes a snapshot now, unless another replica makes one.
    pub async fn make_snapshot(
        &self,
        source: &Arc<dyn SnapshotSource>,
    ) -> Result<Option<SnapshotPointer>, String> {
        let at_once = SnapshotSettings {
            threshold: 0,
            retention: Duration::ZERO,
        };
        check(self, source, at_once).await
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    fn ages_are_differences_of_the_servers_times() {
        let from = "2026-11-27T01:59:59.5Z";
        let between = |later| time_between(from, later);
        let expected = Duration::from_millis(1_750);
        assert_eq!(
            between("2026-11-27T02:00:01.250000001Z"),
            Some(expected + Duration::from_nanos(1))
        );
        assert_eq!(between("2026-11-27T04:00:01.25+02:00"), Some(expected));
        assert_eq!(between("2026-11-27T01:00:00Z"), None);
        assert_eq!(between("soon"), None);
    }

    #[test]
    #[contract("DY21")]
    fn a_snapshot_is_due_by_number_or_before_retention_removes_what_none_covers() {
        let settings = SnapshotSettings {
            threshold: 1_000,
            retention: Duration::from_secs(3_600),
        };
        for (uncovered, minutes, expected) in [
            (0, 500, false),
            (1, 0, false),
            (1_000, 29, false),
            (1_001, 0, true),
            (1, 31, true),
        ] {
            let age = Duration::from_secs(minutes * 60);
            assert_eq!(
                settings.is_due(uncovered, age),
                expected,
                "{uncovered} {minutes}"
            );
        }
    }
}
