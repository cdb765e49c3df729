//! Metrics of routing by prompt beginning, under the names that existing dashboards use (contract
//! CK66, CK67). Read at each scrape.

use std::{fmt, sync::Arc};

use fleet::{Fleet, WorkerView};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};
use routing::PrefixDecisionCounters;

use crate::load_telemetry::sum_by_worker;

/// Reads the counters of the fleet's workers.
#[derive(Debug)]
pub(crate) struct PrefixCollector {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) counters: Arc<PrefixDecisionCounters>,
}

impl Collector for PrefixCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut requests = encoder.encode_descriptor(
            "continuum_prefix_routing_requests",
            "Requests by how the beginning of their prompt placed them",
            None,
            MetricType::Counter,
        )?;
        for (strategy, count) in self.counters.counts().by_strategy() {
            requests
                .encode_family(&[("strategy", strategy)])?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        let mut distribution = encoder.encode_descriptor(
            "continuum_prefix_routing_backend_distribution",
            "Requests in flight by backend that routing by prefix placed there",
            None,
            MetricType::Gauge,
        )?;
        let placed = |worker: &WorkerView| i64::from(self.counters.in_flight(worker.id));
        for (worker, in_flight) in sum_by_worker(&self.fleet.snapshot(), placed) {
            distribution
                .encode_family(&[("backend", worker)])?
                .encode_gauge(&in_flight)?;
        }
        let mut cardinality = encoder.encode_descriptor(
            "continuum_prefix_routing_prefix_cardinality",
            "Different beginnings of prompts seen, estimated within 2 %",
            None,
            MetricType::Gauge,
        )?;
        cardinality
            .encode_gauge(&i64::try_from(self.counters.unique_prefixes()).unwrap_or(i64::MAX))
    }
}
