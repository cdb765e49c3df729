//! Connections that failed for a reason local to this process or its machine.

use kv_blocks::Moment;
use net::LocalFault;
use parking_lot::Mutex;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use std::time::Duration;

/// Pause between two log lines about the same fault.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// Counts the faults and logs them.
#[derive(Debug, Default)]
pub(super) struct LocalFaults {
    count: Counter,
    logged: Mutex<Option<Moment>>,
}

impl LocalFaults {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Connections to workers that could not be opened for want of descriptors, ports, memory or addresses";
        registry.register("warmroute_local_failures", help, self.count.clone());
    }

    pub(super) fn record(&self, fault: LocalFault, error: &std::io::Error, now: Moment) {
        self.count.inc();
        let mut logged = self.logged.lock();
        if logged.is_none_or(|at| now.since(at) >= LOG_PAUSE) {
            *logged = Some(now);
            tracing::error!(%error, advice = fault.remedy(), "no connection to a worker could be opened, and no worker is to blame");
        }
    }
}
