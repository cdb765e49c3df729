//! `GET /admin/sessions`: which requests wait for room in a cache, and why.

use std::sync::Arc;

use api::{AdmissionEnds, CacheInUse, SessionsReport, WaitingForRoom};
use axum::{
    extract::{Query, State},
    response::Response,
};
use fleet::{Fleet, Snapshot};
use net::Clock;
use routing::{LiveTarget, RoomWaiter, Router};
use serde::Deserialize;

use crate::{list_limit::list_limit, response};

/// The parameters of the report.
#[derive(Debug, Deserialize)]
pub(crate) struct SessionsQuery {
    limit: Option<String>,
}

pub(crate) async fn report(
    State(router): State<Arc<Router>>,
    State(fleet): State<Arc<Fleet>>,
    State(clock): State<Clock>,
    Query(query): Query<SessionsQuery>,
) -> Response {
    let limit = match list_limit(query.limit.as_deref()) {
        Ok(limit) => limit,
        Err(error) => return response::error(&error),
    };
    let admission = router.admission_report(clock.now(), limit);
    let snapshot = fleet.snapshot();
    let targets = admission.targets.iter();
    response::json(&SessionsReport {
        enabled: admission.enabled,
        keep_seconds: admission.keep.as_secs_f64(),
        return_share: admission.return_share,
        workers: targets
            .filter_map(|target| cache(&snapshot, target))
            .collect(),
        waiting_total: admission.waiting_total as u64,
        waiting: admission.waiting.iter().map(waiting).collect(),
        ended: AdmissionEnds {
            room: admission.counts.room,
            budget: admission.counts.budget,
            overdue: admission.counts.overdue,
            refused: admission.counts.refused,
        },
    })
}

/// Returns the row of a cache; `None`: its worker is gone.
fn cache(snapshot: &Snapshot, live: &LiveTarget) -> Option<CacheInUse> {
    let worker = snapshot.worker(live.target.worker)?;
    Some(CacheInUse {
        worker: Arc::clone(&worker.name),
        dp_rank: live.target.rank.0,
        live_blocks: live.live_blocks,
        capacity_blocks: live.capacity,
        credit_ms: live.credit_ms,
    })
}

fn waiting(waiter: &RoomWaiter) -> WaitingForRoom {
    let RoomWaiter {
        ticket,
        tenant,
        worker,
        waited,
        wait,
    } = waiter;
    WaitingForRoom {
        ticket: ticket.0,
        tenant: Arc::clone(tenant),
        worker: Arc::clone(worker),
        waited_seconds: waited.as_secs_f64(),
        expected_seconds: wait.expected.as_secs_f64(),
        ahead: wait.ahead as u64,
        needed_blocks: wait.needed_blocks,
        reason: wait.sentence(worker),
    }
}
