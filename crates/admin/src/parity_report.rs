//! `GET /admin/parity`: predictions beside the engines' reports, over the window, and beside the first
//! tokens that the router saw.

use std::{sync::Arc, time::Duration};

use api::{ParityFigures, ParityReport, ParityVerdict, TargetParity, TtftParity, WorkerTtftParity};
use axum::{extract::State, response::Response};
use fleet::{Fleet, WorkerView};
use net::Clock;
use parity::{ParityTracker, Summary};
use parking_lot::Mutex;
use routing::{Router, TtftRatios};

use crate::response;

pub(crate) async fn report(
    State(fleet): State<Arc<Fleet>>,
    State(parity): State<Arc<Mutex<ParityTracker>>>,
    State(router): State<Arc<Router>>,
    State(clock): State<Clock>,
) -> Response {
    let window = parity.lock().settings().window;
    let (mut workers, mut ttft) = (Vec::new(), Vec::new());
    let mut total: Option<Summary> = None;
    for worker in &fleet.snapshot().workers {
        let ratios = router.ttft_ratios(worker.id);
        ttft.push(WorkerTtftParity {
            worker: Arc::clone(&worker.name),
            classes: ratios.into_iter().map(ttft_parity).collect(),
        });
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
        ttft,
    })
}

fn ttft_parity(ratios: TtftRatios) -> TtftParity {
    TtftParity {
        from_ms: ratios.from_ms,
        samples: ratios.samples,
        ratio_p10: ratios.p10,
        ratio_p50: ratios.p50,
        ratio_p90: ratios.p90,
        margin: ratios.margin,
    }
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
