//! An identity that follows its files.

use std::{sync::Arc, task::Context, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::TlsIdentity;

/// How often the files are looked at. They are small; who replaces them is not kept waiting.
const LOOK: Duration = Duration::from_secs(2);

/// An identity, and when its files are looked at next.
#[derive(Debug)]
pub(crate) struct ReloadingIdentity {
    pub(crate) identity: Arc<TlsIdentity>,
    looks: Mutex<Interval>,
}

impl ReloadingIdentity {
    /// Must be called on a runtime.
    pub(crate) fn new(identity: Arc<TlsIdentity>) -> Self {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            identity,
            looks: Mutex::new(looks),
        }
    }

    /// Has the files looked at when it is time; `cx` is woken for that.
    pub(crate) fn poll_refresh(&self, cx: &mut Context<'_>) {
        while self.looks.lock().poll_tick(cx).is_ready() {
            let identity = Arc::clone(&self.identity);
            // Files may be slow, and accepting must not be. It ends by itself.
            drop(tokio::task::spawn_blocking(move || {
                match identity.refresh() {
                    Ok(false) => {}
                    Ok(true) => {
                        tracing::info!(cert = %identity.files().cert.display(), "certificate read again")
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a changed certificate is of no use, the one before stays in force")
                    }
                }
            }));
        }
    }
}
