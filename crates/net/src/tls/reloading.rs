//! An identity that follows its files.

use std::{sync::Arc, task::Context, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::TlsIdentity;

/// Interval of file checks. The files are small; an operator who replaces them does not wait long.
const LOOK: Duration = Duration::from_secs(2);

/// An identity, and the time of the next check of its files.
#[derive(Debug)]
pub(crate) struct ReloadingIdentity {
    pub(crate) identity: Arc<TlsIdentity>,
    checks: Mutex<Interval>,
}

impl ReloadingIdentity {
    /// Creates the identity; must be called on a runtime.
    pub(crate) fn new(identity: Arc<TlsIdentity>) -> Self {
        let mut checks = interval(LOOK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            identity,
            checks: Mutex::new(checks),
        }
    }

    /// Starts a check of the files when it is due; `cx` is woken for that.
    pub(crate) fn poll_refresh(&self, cx: &mut Context<'_>) {
        while self.checks.lock().poll_tick(cx).is_ready() {
            let identity = Arc::clone(&self.identity);
            // File access may be slow, and accepting must not be. The task ends by itself.
            drop(runtime::spawn_blocking(move || match identity.refresh() {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!(cert = %identity.files().cert.display(), "certificate read again")
                }
                Err(error) => {
                    tracing::warn!(%error, "a changed certificate is of no use, the one before stays in force")
                }
            }));
        }
    }
}
