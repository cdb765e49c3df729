//! What makes the configuration be read anew without anybody calling: its file changes, a signal comes, a lease ends.
//!
//! The file is looked at once a second rather than watched by the kernel: that also sees it behind a link that is switched,
//! as volumes of Kubernetes do it, and no storm of writes causes more than one reload a second.

use std::{fs, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    time::MissedTickBehavior,
};

use super::{Live, discovered};

const EVERY: Duration = Duration::from_secs(1);

/// Which version of a file was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    modified: (i64, i64),
    inode: u64,
    bytes: u64,
}

impl Version {
    /// Of the file as it is now; `None`: there is none.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let seen = fs::metadata(path).ok()?;
        Some(Self { modified: (seen.mtime(), seen.mtime_nsec()), inode: seen.ino(), bytes: seen.len() })
    }
}

/// Keeps the configuration up to date with its sources; never returns.
pub(crate) async fn keep(live: Arc<Live>) {
    tokio::join!(look(&live), signals(&live), discovered::follow(&live));
}

async fn look(live: &Arc<Live>) {
    let path = live.state.lock().sources.path().cloned();
    let mut seen = path.as_deref().and_then(Version::of);
    // The start read it a moment before it was first looked at.
    let mut stale =
        path.as_deref().and_then(|path| fs::read_to_string(path).ok()).as_deref() != live.state.lock().sources.text();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        live.aside(Live::end_leases).await;
        let Some(path) = &path else { continue };
        let now = Version::of(path);
        if now == seen && !std::mem::take(&mut stale) {
            continue;
        }
        match (seen, now) {
            (_, Some(_)) => drop(live.aside(|live| live.reload_because("file", false)).await),
            (Some(_), None) => {
                tracing::error!(path = %path.display(), "the configuration file is gone: what it said stays in force");
                live.set_refused(true);
            }
            (None, None) => {}
        }
        seen = now;
    }
}

async fn signals(live: &Arc<Live>) {
    let mut hang_up = match signal(SignalKind::hangup()) {
        Ok(hang_up) => hang_up,
        Err(error) => return tracing::warn!(%error, "SIGHUP could not be caught"),
    };
    while hang_up.recv().await.is_some() {
        live.aside(|live| live.reload_because("signal", false)).await;
    }
}
