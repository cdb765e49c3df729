//! Whether requests wait for the controller: not from the moment when it failed to answer in time until it was seen to.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Open or closed, and a bell for whoever is to find out when it may open again. Closed at first.
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

    /// Nobody waits from now on. Whether that changed anything.
    pub(crate) fn close(&self) -> bool {
        let was_open = self.open.swap(false, Ordering::Relaxed);
        if was_open {
            self.closed.notify_one();
        }
        was_open
    }

    /// Resolves when it is closed.
    pub(crate) async fn closes(&self) {
        // The bell may have rung for a time that is over.
        while self.is_open() {
            self.closed.notified().await;
        }
    }
}
