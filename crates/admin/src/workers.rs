//! `GET /admin/workers` and `GET /admin/workers/{name}`.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use fleet::{WorkerState, WorkerView};
use kv_blocks::Tier;
use serde_json::{Value, json};

use crate::{AdminParts, parity_report, response};

pub(crate) async fn list(State(parts): State<Arc<AdminParts>>) -> Response {
    let workers: Vec<Value> = parts
        .fleet
        .snapshot()
        .workers
        .iter()
        .map(|worker| describe(&parts, worker))
        .collect();
    response::json(&json!({"workers": workers}))
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

/// Returns shape W of the interfaces: the state of one worker in fleet, router and index.
pub(crate) fn describe(parts: &AdminParts, worker: &WorkerView) -> Value {
    let mut in_flight = 0;
    let (mut queued_prefill_tokens, mut decode_blocks) = (0, 0);
    let mut warm = [0u64; 4];
    for target in worker.targets() {
        let load = parts.router.load(target);
        in_flight += load.in_flight;
        queued_prefill_tokens += load.queued_prefill_tokens;
        decode_blocks += load.decode_blocks;
        for (sum, blocks) in warm.iter_mut().zip(parts.index.blocks_per_tier(target)) {
            *sum += blocks;
        }
    }
    let rates = parts.router.rates(worker.id);
    let warm_blocks: serde_json::Map<String, Value> = Tier::ALL
        .iter()
        .zip(warm)
        .map(|(tier, blocks)| (tier.as_str().to_owned(), blocks.into()))
        .collect();
    json!({
        "name": worker.name,
        "url": worker.url.to_string(),
        "type": worker.engine.as_str(),
        "state": worker.state.as_str(),
        "since": net::rfc3339(worker.since),
        "models": worker.models.iter().map(|model| &model.id).collect::<Vec<_>>(),
        "loras": worker.loras.iter().map(|lora| &lora.id).collect::<Vec<_>>(),
        "messages": worker.messages.as_str(),
        "role": worker.role.as_str(),
        "weight": worker.weight,
        "block_size": worker.block_size.tokens(),
        "dp_ranks": worker.dp_ranks(),
        "engine": {
            "version": worker.version,
            "num_blocks": worker.num_blocks,
            "kv_usage_ratio": worker.load.kv_usage_ratio,
            "running": worker.load.running,
            "waiting": worker.load.waiting,
        },
        "load": {
            "in_flight": in_flight,
            "queued_prefill_tokens": queued_prefill_tokens,
            "decode_blocks": decode_blocks,
        },
        "warm_blocks": warm_blocks,
        "rates": {
            "prefill_tokens_per_s": rates.prefill_tokens_per_s,
            "overhead_ms": rates.overhead_ms,
            "decode_ms_per_sequence": rates.decode_ms_per_sequence,
            "samples": rates.samples,
            "learned": rates.learned,
        },
        "cache_source": worker.cache_source().as_str(),
        // Passive ejection is the only breaker: an ejected worker is open.
        "circuit": if worker.state == WorkerState::Ejected { "open" } else { "closed" },
        "parity": parity_report::worst_state(parts, worker),
        "last_error": worker.last_error,
    })
}
