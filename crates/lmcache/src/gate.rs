//! Availability of the controller: after a missed time limit no request waits for it until it has
//! answered in time again.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Open or closed, with a notification for the task that tests when to open it again. Closed at
/// first.
#[derive(Debug, Default)]
pub(crate) struct AvailabilityGate {
    open: AtomicBool,
    closed: Notify,
}

impl AvailabilityGate {
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }

    /// Closes the gate: no request waits from now on. Returns whether it was open.
    pub(crate) fn close(&self) -> bool {
        let was_open = self.open.swap(false, Ordering::Relaxed);
        if was_open {
            self.closed.notify_one();
        }
        was_open
    }

    /// Resolves when it is closed.
    pub(crate) async fn closes(&self) {
        // The notification may be outdated.
        while self.is_open() {
            self.closed.notified().await;
        }
    }
}
