//! `GET /admin/workers` and `GET /admin/workers/{name}`.

use std::sync::Arc;

use crate::{AdminParts, parity_report, response};
use api::{EngineReport, TierBlocks, WorkerLoad, WorkerRates, WorkerReport, WorkerReports};
use axum::{
    extract::{Path, State},
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use fleet::{WorkerState, WorkerView};
use kv_blocks::Tier;

pub(crate) async fn list(State(parts): State<Arc<AdminParts>>) -> Response {
    let snapshot = parts.fleet.snapshot();
    let workers = snapshot.workers.iter();
    response::json(&WorkerReports {
        workers: workers.map(|worker| describe(&parts, worker)).collect(),
    })
}

pub(crate) async fn one(
    State(parts): State<Arc<AdminParts>>,
    Path(name): Path<String>,
) -> Response {
    match parts.fleet.snapshot().worker_named(&name) {
        Some(worker) => response::json(&describe(&parts, worker)),
        None => response::error(&not_found(&name)),
    }
}

pub(crate) fn not_found(name: &str) -> ApiError {
    let name: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
    ApiError::new(
        ErrorCode::WorkerNotFound,
        format!("no worker is named {name:?}: GET /admin/workers lists them"),
    )
}

/// Returns the state of one worker in fleet, router and index.
pub(crate) fn describe(parts: &AdminParts, worker: &WorkerView) -> WorkerReport {
    let rates = parts.router.rates(worker.id);
    WorkerReport {
        name: Arc::clone(&worker.name),
        url: worker.url.to_string(),
        engine_type: worker.engine.as_str().into(),
        state: worker.state.as_str().into(),
        since: net::rfc3339(worker.since),
        models: worker
            .models
            .iter()
            .map(|model| Arc::clone(&model.id))
            .collect(),
        loras: worker
            .loras
            .iter()
            .map(|lora| Arc::clone(&lora.id))
            .collect(),
        messages: worker.messages.as_str().into(),
        role: worker.role.as_str().into(),
        weight: worker.weight,
        block_size: worker.block_size.tokens(),
        dp_ranks: worker.dp_ranks(),
        engine: EngineReport {
            version: worker.version.clone(),
            num_blocks: worker.num_blocks,
            kv_usage_ratio: worker.load.kv_usage_ratio,
            running: worker.load.running,
            waiting: worker.load.waiting,
        },
        load: load(parts, worker),
        warm_blocks: warm_blocks(parts, worker),
        rates: WorkerRates {
            prefill_tokens_per_s: rates.prefill_tokens_per_s,
            overhead_ms: rates.overhead_ms,
            decode_ms_per_sequence: rates.decode_ms_per_sequence,
            samples: rates.samples,
            learned: rates.learned,
        },
        cache_source: worker.cache_source().as_str().into(),
        // Passive ejection is the only breaker: an ejected worker is open.
        circuit: if worker.state == WorkerState::Ejected {
            "open"
        } else {
            "closed"
        }
        .into(),
        parity: parity_report::worst_state(parts, worker).into(),
        last_error: worker.last_error.clone(),
    }
}

/// Returns the load of all ranks.
pub(crate) fn load(parts: &AdminParts, worker: &WorkerView) -> WorkerLoad {
    let mut sum = WorkerLoad {
        in_flight: 0,
        queued_prefill_tokens: 0,
        decode_blocks: 0,
    };
    for target in worker.targets() {
        let load = parts.router.load(target);
        sum.in_flight += load.in_flight;
        sum.queued_prefill_tokens += load.queued_prefill_tokens;
        sum.decode_blocks += load.decode_blocks;
    }
    sum
}

/// Returns the indexed blocks of all ranks.
pub(crate) fn warm_blocks(parts: &AdminParts, worker: &WorkerView) -> TierBlocks {
    let mut sum = [0; Tier::ALL.len()];
    for target in worker.targets() {
        for (sum, blocks) in sum.iter_mut().zip(parts.index.blocks_per_tier(target)) {
            *sum += blocks;
        }
    }
    // In the order of `Tier::ALL`.
    let [device, host, disk, remote] = sum;
    TierBlocks {
        device,
        host,
        disk,
        remote,
    }
}
