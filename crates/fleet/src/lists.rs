//! On-demand refresh of the workers' model lists.

use std::time::Duration;

use kv_blocks::{Moment, WorkerId};

use crate::{Fleet, WorkerState, worker_machine::WorkerEvent, worker_table::WorkerTable};

impl Fleet {
    /// Makes the supervisors check every ready worker whose list is older than `age`: one check
    /// each, however many callers wait. Resolves when all are checked, or after `limit`.
    pub async fn refresh_lists(&self, age: Duration, limit: Duration) {
        let table = self.worker_table();
        let now = table.clock.now();
        let mut checks = table.checks.subscribe();
        let due: Vec<WorkerId> = ready(table, |checked_at| checked_at + age <= now);
        for id in &due {
            table.on(*id, WorkerEvent::CheckRequested);
        }
        // A worker that went down meanwhile is skipped.
        let waits = || {
            ready(table, |checked_at| checked_at < now)
                .iter()
                .any(|id| due.contains(id))
        };
        let all = async { while waits() && checks.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(limit, all).await;
    }
}

/// Returns ready workers whose last check time matches.
fn ready(table: &WorkerTable, matches: impl Fn(Moment) -> bool) -> Vec<WorkerId> {
    let mut found = Vec::new();
    table.each(|entry| {
        if entry.view.health.state == WorkerState::Ready && matches(entry.machine.last_check()) {
            found.push(entry.view.id);
        }
    });
    found
}
