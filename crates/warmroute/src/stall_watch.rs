//! Detects that the process was suspended: it was stopped, its machine was paused, or its runtime
//! got no time.
//!
//! It reads the beats of [`net::RunTime`], the time line on which leases are kept.

use std::{sync::atomic::AtomicU64, time::Duration};

use net::{Clock, RunTime};
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use supervision::Task;
use tokio::task::JoinHandle;

/// Registers its metric and starts the watch task. Call inside a tokio runtime; the task ends when
/// it is aborted.
pub(crate) fn start(clock: Clock, registry: &mut Registry) -> JoinHandle<()> {
    let seconds = Counter::<f64, AtomicU64>::default();
    let help = "Time in which this process, or its runtime, stood still for a second or more";
    registry.register("warmroute_scheduler_stall_seconds", help, seconds.clone());
    runtime::spawn(async move {
        // The count survives a panic: no stall is counted twice.
        let (mut task, mut seen) = (Task::new("stall_watch"), clock.record_tick());
        while task
            .attempt(watch(clock, &seconds, &mut seen))
            .await
            .is_none()
        {}
    })
}

async fn watch(clock: Clock, seconds: &Counter<f64, AtomicU64>, seen: &mut Duration) {
    loop {
        tokio::time::sleep(RunTime::BEAT).await;
        let stalled = clock.record_tick();
        let latest = (stalled - *seen).as_secs_f64();
        if latest > 0.0 {
            *seen = stalled;
            seconds.inc_by(latest);
            tracing::warn!(
                stalled_s = latest,
                "the process stood still: leases are extended by that time"
            );
        }
    }
}
