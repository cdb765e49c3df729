//! Watches the memory in use, four times a second.

use std::{convert::Infallible, time::Duration};

use tokio::time::MissedTickBehavior;

use crate::{CurrentGateway, memory::MemoryStage};

const EVERY: Duration = Duration::from_millis(250);

/// A source of the memory in use.
pub(crate) trait ResidentMemory {
    /// Returns bytes; `None` where unknown.
    fn bytes(&mut self) -> Option<u64>;
}

/// The resident memory of this process, as the system reports it.
#[derive(Debug)]
pub(crate) struct ProcessMemory;

impl ResidentMemory for ProcessMemory {
    fn bytes(&mut self) -> Option<u64> {
        resident(&std::fs::read_to_string("/proc/self/status").ok()?)
    }
}

/// Parses `VmRSS` from `/proc/self/status`: the same figure as in `statm`, in a unit that every
/// system agrees on.
fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Keeps to the current budget; never returns.
pub(crate) async fn watch(
    gateways: &CurrentGateway,
    mut resident: impl ResidentMemory,
) -> Infallible {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let gateway = gateways.current();
        let budget = gateway.edge.admission.process.memory_budget;
        let used = budget.and_then(|_| resident.bytes());
        let changed = gateway.edge.admission.memory.observe(used, budget);
        if let Some((before, now)) = changed {
            let (before, now) = (before.as_str(), now.as_str());
            tracing::warn!(
                before,
                now,
                used_bytes = used,
                budget_bytes = budget,
                "memory stage changed"
            );
        }
        // Repeated while the stage lasts: new models bring new caches.
        if changed.is_some() || gateway.edge.admission.memory.stage() > MemoryStage::Normal {
            gateway.relieve();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_in_use_is_read_in_bytes() {
        assert_eq!(
            resident("VmPeak:\t  90 kB\nVmRSS:\t    1234 kB\nThreads: 1\n"),
            Some(1234 * 1024)
        );
        assert_eq!(resident("VmRSS:\t many kB\n"), None);
        assert_eq!(resident(""), None);
        assert!(ProcessMemory.bytes().is_none_or(|bytes| bytes > 100_000));
    }
}
