//! `GET /admin/parity`: predictions beside the engines' reports, over the window.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use fleet::WorkerView;
use net::Clock;
use parity::{ParityReport, Summary};
use serde_json::{Value, json};

use crate::{AdminParts, response};

pub(crate) async fn report(State(parts): State<Arc<AdminParts>>) -> Response {
    let window = parts.parity.lock().settings().window;
    let mut workers = Vec::new();
    let mut total: Option<Summary> = None;
    for worker in &parts.fleet.snapshot().workers {
        for target in worker.targets() {
            // Locked for one target at a time and formatted afterwards, since requests end
            // meanwhile.
            let summary = parts.parity.lock().summary(target);
            match &mut total {
                Some(total) => total.absorb(summary.clone()),
                none => *none = Some(summary.clone()),
            }
            let mut row = json!({"worker": worker.name, "dp_rank": target.rank.0});
            figures(&mut row, summary.report(), window, &parts.clock);
            workers.push(row);
        }
    }
    let mut sum = json!({});
    figures(
        &mut sum,
        total.unwrap_or_default().report(),
        window,
        &parts.clock,
    );
    response::json(&json!({"window_s": seconds(window), "workers": workers, "total": sum}))
}

fn figures(row: &mut Value, report: ParityReport, window: Duration, clock: &Clock) {
    let covered_s = seconds(report.covered(clock.now(), window));
    row["requests"] = report.requests.into();
    row["joined"] = report.joined.into();
    row["source"] = report.source.as_str().into();
    row["exact"] = report.exact.into();
    row["exact_ratio"] = report.exact_ratio.into();
    row["predicted_tokens"] = report.predicted_tokens.into();
    row["actual_tokens"] = report.actual_tokens.into();
    row["drift_tokens_p50"] = report.drift_tokens_p50.into();
    row["drift_tokens_p99"] = report.drift_tokens_p99.into();
    row["over_ratio"] = report.over_ratio.into();
    row["state"] = report.state.as_str().into();
    row["since"] = net::rfc3339(clock.wall_at(report.since)).into();
    row["reason"] = report.reason.into();
    row["covered_s"] = covered_s;
}

/// Formats seconds; whole ones without a decimal point.
fn seconds(length: Duration) -> Value {
    if length.subsec_nanos() == 0 {
        length.as_secs().into()
    } else {
        length.as_secs_f64().into()
    }
}

/// Returns the parity state of a worker's worst rank.
pub(crate) fn worst_state(parts: &AdminParts, worker: &WorkerView) -> &'static str {
    let book = parts.parity.lock();
    let worst = worker
        .targets()
        .map(|target| book.state(target))
        .reduce(parity::ParityState::worse);
    worst.unwrap_or_default().as_str()
}
