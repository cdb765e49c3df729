//! On-demand refresh of the workers' model lists.

use std::{cmp::Reverse, time::Duration};

use kv_blocks::{Moment, WorkerId};

use crate::{Fleet, WorkerState, worker_machine::WorkerEvent, worker_table::WorkerTable};

impl Fleet {
    /// Makes the supervisors check every ready worker whose list is older than `age`, and all but
    /// the `reused` workers checked last: one check each, however many callers wait. Resolves when
    /// all are checked, or after `limit`.
    pub async fn refresh_lists(&self, age: Duration, reused: usize, limit: Duration) {
        let table = self.worker_table();
        let now = table.clock.now();
        let mut checks = table.checks.subscribe();
        let mut workers = ready(table);
        workers.sort_unstable_by_key(|(id, checked_at)| (Reverse(*checked_at), *id));
        let due: Vec<WorkerId> = workers
            .iter()
            .enumerate()
            .filter(|(rank, (_, checked_at))| *rank >= reused || *checked_at + age <= now)
            .map(|(_, (id, _))| *id)
            .collect();
        for id in &due {
            table.on(*id, WorkerEvent::CheckRequested);
        }
        // A worker that went down meanwhile is skipped.
        let waits = || {
            ready(table)
                .iter()
                .any(|(id, checked_at)| *checked_at < now && due.contains(id))
        };
        let all = async { while waits() && checks.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(limit, all).await;
    }
}

/// Returns the ready workers with the times of their last checks.
fn ready(table: &WorkerTable) -> Vec<(WorkerId, Moment)> {
    let mut found = Vec::new();
    table.each(|entry| {
        if entry.view.health.state == WorkerState::Ready {
            found.push((entry.view.id, entry.machine.last_check()));
        }
    });
    found
}
