//! `GET /admin/workers` and `GET /admin/workers/{name}`.

use std::sync::Arc;

use api::{
    EngineReport, TierBlocks, WorkerHealth, WorkerIdentity, WorkerLoad, WorkerRates, WorkerReport,
    WorkerReports, WorkerService,
};
use axum::{
    extract::{FromRef, Path, State},
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use fleet::{Fleet, WorkerState, WorkerView};
use kv_blocks::Tier;
use kv_index::KvIndex;
use parity::ParityTracker;
use parking_lot::Mutex;
use routing::Router;

use crate::{AdminParts, parity_report, response};

/// Reports of workers, from fleet, router, index and parity.
#[derive(Clone, Debug)]
pub(crate) struct WorkerReporter {
    pub(crate) fleet: Arc<Fleet>,
    router: Arc<Router>,
    index: Arc<KvIndex>,
    parity: Arc<Mutex<ParityTracker>>,
}

impl FromRef<AdminParts> for WorkerReporter {
    fn from_ref(parts: &AdminParts) -> Self {
        Self {
            fleet: Arc::clone(&parts.fleet),
            router: Arc::clone(&parts.router),
            index: Arc::clone(&parts.kv_index.index),
            parity: Arc::clone(&parts.decisions.parity),
        }
    }
}

pub(crate) async fn list(State(workers): State<WorkerReporter>) -> Response {
    response::json(&WorkerReports {
        workers: workers.all(),
    })
}

impl AdminParts {
    /// Returns the state of all workers.
    pub fn worker_reports(&self) -> Vec<WorkerReport> {
        WorkerReporter::from_ref(self).all()
    }
}

pub(crate) async fn one(
    State(workers): State<WorkerReporter>,
    Path(name): Path<String>,
) -> Response {
    match workers.fleet.snapshot().worker_named(&name) {
        Some(worker) => response::json(&workers.report(worker)),
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

/// Returns the worker's last error. Of a worker that is not of the configuration it is a fixed word:
/// a caller that registers an address learns nothing of what answers there.
fn last_error(worker: &WorkerView) -> Option<Arc<str>> {
    let problem = worker.health.last_error.as_ref()?;
    Some(if worker.is_configured() {
        Arc::clone(problem.text())
    } else {
        problem.kind.as_str().into()
    })
}

impl WorkerReporter {
    /// Returns the state of all workers.
    fn all(&self) -> Vec<WorkerReport> {
        let snapshot = self.fleet.snapshot();
        let workers = snapshot.workers.iter();
        workers.map(|worker| self.report(worker)).collect()
    }

    /// Returns the state of one worker in fleet, router and index.
    pub(crate) fn report(&self, worker: &WorkerView) -> WorkerReport {
        let rates = self.router.rates(worker.id);
        WorkerReport {
            identity: WorkerIdentity {
                name: Arc::clone(&worker.name),
                url: worker.connection.url.to_string(),
                engine_type: worker.engine.kind.as_str().into(),
                state: worker.health.state.as_str().into(),
                since: net::rfc3339(worker.health.since),
            },
            service: service(worker),
            engine: EngineReport {
                version: worker.engine.version.clone(),
                num_blocks: worker.cache.num_blocks,
                kv_usage_ratio: worker.load.kv_usage_ratio,
                running: worker.load.running,
                waiting: worker.load.waiting,
            },
            load: self.load(worker),
            warm_blocks: self.warm_blocks(worker),
            rates: WorkerRates {
                prefill_tokens_per_s: rates.prefill_tokens_per_s,
                overhead_ms: rates.overhead_ms,
                decode_ms_per_sequence: rates.decode_ms_per_sequence,
                samples: rates.samples,
                learned: rates.learned,
            },
            health: WorkerHealth {
                cache_source: worker.cache_source().as_str().into(),
                // Passive ejection is the only breaker: an ejected worker is open.
                circuit: if worker.health.state == WorkerState::Ejected {
                    "open"
                } else {
                    "closed"
                }
                .into(),
                parity: parity_report::worst_state(&self.parity, worker).into(),
                salt: worker.salt_support.as_str().into(),
                last_error: last_error(worker),
            },
        }
    }

    /// Returns the load of all ranks.
    pub(crate) fn load(&self, worker: &WorkerView) -> WorkerLoad {
        let mut sum = WorkerLoad {
            in_flight: 0,
            queued_prefill_tokens: 0,
            decode_blocks: 0,
        };
        for target in worker.targets() {
            let load = self.router.load(target);
            sum.in_flight += load.in_flight;
            sum.queued_prefill_tokens += load.queued_prefill_tokens;
            sum.decode_blocks += load.decode_blocks;
        }
        sum
    }

    /// Returns the indexed blocks of all ranks.
    pub(crate) fn warm_blocks(&self, worker: &WorkerView) -> TierBlocks {
        let mut sum = [0; Tier::ALL.len()];
        for target in worker.targets() {
            for (sum, blocks) in sum.iter_mut().zip(self.index.blocks_per_tier(target)) {
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
}

fn service(worker: &WorkerView) -> WorkerService {
    let (models, loras) = (worker.served.models.iter(), worker.served.loras.iter());
    WorkerService {
        models: models.map(|model| Arc::clone(&model.id)).collect(),
        loras: loras.map(|lora| Arc::clone(&lora.id)).collect(),
        messages: worker.engine.messages.as_str().into(),
        role: worker.role.as_str().into(),
        weight: worker.weight,
        block_size: worker.cache.block_size.tokens(),
        dp_ranks: worker.dp_ranks(),
    }
}
