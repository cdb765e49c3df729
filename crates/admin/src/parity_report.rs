//! `GET /admin/parity`: predictions beside the engines' reports, over the window.

use std::{sync::Arc, time::Duration};

use api::{ParityFigures, ParityReport, ParityVerdict, TargetParity};
use axum::{extract::State, response::Response};
use fleet::{Fleet, WorkerView};
use net::Clock;
use parity::{ParityTracker, Summary};
use parking_lot::Mutex;

use crate::response;

pub(crate) async fn report(
    State(fleet): State<Arc<Fleet>>,
    State(parity): State<Arc<Mutex<ParityTracker>>>,
    State(clock): State<Clock>,
) -> Response {
    let window = parity.lock().settings().window;
    let mut workers = Vec::new();
    let mut total: Option<Summary> = None;
    for worker in &fleet.snapshot().workers {
        for target in worker.targets() {
            // Locked for one target at a time and formatted afterwards, since requests end
            // meanwhile.
            let summary = parity.lock().summary(target);
            match &mut total {
                Some(total) => total.absorb(summary.clone()),
                none => *none = Some(summary.clone()),
            }
            workers.push(TargetParity {
                worker: Arc::clone(&worker.name),
                dp_rank: target.rank.0,
                figures: figures(summary, window, &clock),
            });
        }
    }
    response::json(&ParityReport {
        window_s: window.as_secs_f64(),
        workers,
        total: figures(total.unwrap_or_default(), window, &clock),
    })
}

fn figures(summary: Summary, window: Duration, clock: &Clock) -> ParityFigures {
    let verdict = &summary.verdict;
    ParityFigures {
        covered_s: summary.covered(clock.now(), window).as_secs_f64(),
        verdict: ParityVerdict {
            state: verdict.state.as_str().into(),
            since: net::rfc3339(clock.wall_at(verdict.since)),
            reason: verdict.reason.clone(),
        },
        counts: summary.counts(),
    }
}

/// Returns the parity state of a worker's worst rank.
pub(crate) fn worst_state(parity: &Mutex<ParityTracker>, worker: &WorkerView) -> &'static str {
    let tracker = parity.lock();
    let worst = worker
        .targets()
        .map(|target| tracker.state(target))
        .reduce(parity::ParityState::worse);
    worst.unwrap_or_default().as_str()
}
