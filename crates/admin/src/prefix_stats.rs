//! `GET /admin/prefix-routing/stats`: counters of prefix routing, with the keys that its operators
//! know (contract CK73). Our own keys follow them.

use std::sync::Arc;

use api::{BackendLoad, PrefixConfig, PrefixDecisions, PrefixRoutingStats};
use axum::{extract::State, response::Response};
use routing::{Policy, PrefixDecisionCounters};

use crate::{Control, response, workers::WorkerReporter};

pub(crate) async fn stats(
    State(control): State<Arc<dyn Control>>,
    State(counters): State<Arc<PrefixDecisionCounters>>,
    State(workers): State<WorkerReporter>,
) -> Response {
    let settings = control.settings();
    let (config, counts) = (&settings.prefix_routing, counters.counts());
    response::json(&PrefixRoutingStats {
        enabled: config.enabled || settings.routing.policy() == Policy::PrefixHash,
        config: PrefixConfig {
            max_prefix_length: config.max_prefix_length,
            load_factor_epsilon: config.load_factor_epsilon,
            virtual_nodes: config.virtual_nodes,
            anthropic_cache_control_injection: config.anthropic_cache_control_injection,
        },
        routing_decisions: PrefixDecisions {
            total: counts.total(),
            prefix_hash: counts.prefix_hash,
            overflow: counts.overflow,
            fallback: counts.fallback,
            overflow_rate: format!("{:.4}", counts.overflow_rate()),
        },
        backend_distribution: distribution(&workers, &counters),
        unique_prefixes: counters.unique_prefixes(),
    })
}

/// Returns the requests in flight on each worker that routing by prefix placed there.
fn distribution(workers: &WorkerReporter, counters: &PrefixDecisionCounters) -> Vec<BackendLoad> {
    let snapshot = workers.fleet.snapshot();
    let rows = snapshot.workers.iter().map(|worker| BackendLoad {
        backend: Arc::clone(&worker.name),
        in_flight_requests: counters.in_flight(worker.id).into(),
    });
    rows.collect()
}
