//! The state of the process as probes and drains see it.

use std::sync::{Arc, atomic::AtomicBool};

use proxy::AbortSwitch;
use tokio::sync::watch;

/// Flags that a drain, a reload or a failure sets.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    /// Aborts the requests that still run at the end of a drain.
    pub(crate) abort: Arc<AbortSwitch>,
    /// Whether a drain has begun.
    pub(crate) leaving: AtomicBool,
    /// Whether clients can no longer connect although no drain was requested.
    pub(crate) failed: watch::Sender<bool>,
    /// Whether the configuration on disk was refused, so that it differs from the one in force.
    pub(crate) config_refused: AtomicBool,
}
