//! Triggers of a reload besides a call: a changed file, a signal, an expired lease.
//!
//! The file is checked once a second rather than watched by the kernel: that also detects a
//! switched link, as in volumes of Kubernetes, and limits reloads to one a second however often the
//! file is written.

use std::{fs, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use supervision::{Task, supervise};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time::MissedTickBehavior,
};
use zeroize::Zeroizing;

#[cfg(feature = "nats")]
use super::shared_members;
use super::{LiveConfig, discovered};
use crate::wire_up::ProcessOwner;

const EVERY: Duration = Duration::from_secs(1);

/// Version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileVersion {
    modified: (i64, i64),
    inode: u64,
    bytes: u64,
}

impl FileVersion {
    /// Returns the version of the file now; `None`: there is none.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let seen = fs::metadata(path).ok()?;
        Some(Self {
            modified: (seen.mtime(), seen.mtime_nsec()),
            inode: seen.ino(),
            bytes: seen.len(),
        })
    }
}

/// Reloads the configuration when its sources change, at SIGHUP if the process is the router's;
/// never returns. Each source is a task of its own: one that panics, or waits for a file system
/// that hangs, delays none of the others.
///
/// A change that panics leaves the current configuration: the new one is stored as the last step of
/// a change, and a restarted task compares its source with that.
pub(crate) async fn follow_sources(live: Arc<LiveConfig>, owner: ProcessOwner) {
    let mut tasks = JoinSet::new();
    let [file, keys, signal, leases] = [(); 4].map(|()| Arc::clone(&live));
    tasks.spawn(async move { supervise("config_file", || watch_file(&file)).await });
    tasks.spawn(async move { supervise("keys_file", || watch_keys(&keys)).await });
    if owner == ProcessOwner::Router {
        tasks.spawn(async move { signals(&signal).await });
    }
    tasks.spawn(async move { supervise("leases", || end_leases(&leases)).await });
    discovered::follow(&live, &mut tasks);
    #[cfg(feature = "nats")]
    shared_members::follow(&live, &mut tasks);
    while tasks.join_next().await.is_some() {}
}

/// Removes workers with expired leases; never returns.
async fn end_leases(live: &Arc<LiveConfig>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        live.run_blocking(LiveConfig::end_leases).await;
    }
}

/// Whether the file has another text than the one last read.
fn has_other_text(path: &Path, live: &LiveConfig) -> bool {
    let text = fs::read_to_string(path).ok().map(Zeroizing::new);
    let state = live.state.lock();
    text.as_ref().map(|text| text.as_str()) != state.sources.text()
}

async fn watch_file(live: &Arc<LiveConfig>) {
    let path = live.state.lock().sources.path().cloned();
    let Some(path) = path else { return };
    let mut seen = FileVersion::of(&path);
    // The start read the file a moment before this first check.
    let mut stale = has_other_text(&path, live);
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = FileVersion::of(&path);
        if now == seen && !std::mem::take(&mut stale) {
            continue;
        }
        match (seen, now) {
            (_, Some(_)) => drop(
                live.run_blocking(|live| live.reload_because("file", false))
                    .await,
            ),
            (Some(_), None) => {
                tracing::error!(path = %path.display(), "the configuration file is gone: what it said stays in force");
                live.set_refused(true);
            }
            (None, None) => {}
        }
        seen = now;
    }
}

/// Reloads when the file of `tenants.keys_file` changes; never returns.
async fn watch_keys(live: &Arc<LiveConfig>) {
    // A change between the last read and this first check counts.
    let mut seen = live.state.lock().sources.keys_version();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let path = live.current.lock().tenants.keys_file.clone();
        let now = path.and_then(|path| Some((FileVersion::of(&path)?, path)));
        if now.is_some() && now != seen {
            live.run_blocking(|live| live.reload_because("keys_file", false))
                .await;
        }
        seen = now;
    }
}

async fn signals(live: &Arc<LiveConfig>) {
    let mut hang_up = match signal(SignalKind::hangup()) {
        Ok(hang_up) => hang_up,
        Err(error) => return tracing::warn!(%error, "SIGHUP could not be caught"),
    };
    // Caught over all attempts: a signal during a pause is not lost.
    let mut task = Task::new("sighup");
    while task.attempt(reload_at(&mut hang_up, live)).await.is_none() {}
}

async fn reload_at(signal: &mut Signal, live: &Arc<LiveConfig>) {
    while signal.recv().await.is_some() {
        live.run_blocking(|live| live.reload_because("signal", false))
            .await;
    }
}
