//! On-demand refresh of the workers' model lists.

use std::time::Duration;

use kv_blocks::{Moment, WorkerId};

use crate::{Fleet, WorkerState, worker_table::WorkerTable};

impl Fleet {
    /// Makes the supervisors check every ready worker whose list is older than `age`: one check
    /// each, however many callers wait. Resolves when all are checked, or after `limit`.
    pub async fn refresh_lists(&self, age: Duration, limit: Duration) {
        let board = self.worker_table();
        let now = board.clock.now();
        let mut looks = board.looks.subscribe();
        let due: Vec<WorkerId> = ready(board, |looked_at| looked_at + age <= now);
        for id in &due {
            board.request_check(*id);
        }
        // A worker that went down meanwhile is skipped.
        let waits = || {
            ready(board, |looked_at| looked_at < now)
                .iter()
                .any(|id| due.contains(id))
        };
        let all = async { while waits() && looks.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(limit, all).await;
    }
}

/// Returns ready workers whose last check time matches.
fn ready(board: &WorkerTable, looked: impl Fn(Moment) -> bool) -> Vec<WorkerId> {
    let mut found = Vec::new();
    board.each(|entry| {
        if entry.view.state == WorkerState::Ready && looked(entry.looked_at) {
            found.push(entry.view.id);
        }
    });
    found
}
