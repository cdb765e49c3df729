//! The metric families of the pool. Labels come from enums; every combination exists from the
//! start.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        counter::ConstCounter,
        family::Family,
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{FaultKind, Operation, pool::PoolShared};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

/// Counters of the pool.
#[derive(Debug)]
pub(crate) struct PoolCounters {
    faults: [AtomicU64; FaultKind::ALL.len()],
    /// Seconds, 50 us to about 1.6 s.
    latency: Family<OperationLabel, Histogram, fn() -> Histogram>,
}

impl Default for PoolCounters {
    fn default() -> Self {
        let latency: Family<_, _, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(5e-5, 2.0, 16)));
        for operation in Operation::ALL {
            drop(latency.get_or_create(&OperationLabel {
                operation: operation.as_str(),
            }));
        }
        Self {
            faults: Default::default(),
            latency,
        }
    }
}

impl PoolCounters {
    pub(crate) fn fault(&self, kind: FaultKind) {
        self.faults[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn faults(&self, kind: FaultKind) -> u64 {
        self.faults[kind as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn took(&self, operation: Operation, time: Duration) {
        self.latency
            .get_or_create(&OperationLabel {
                operation: operation.as_str(),
            })
            .observe(time.as_secs_f64());
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "continuum_cache_redis_latency_seconds",
            "Time that Redis took to answer, the wait for a connection included",
            self.latency.clone(),
        );
    }
}

/// Reads the pool at each scrape.
#[derive(Debug)]
pub(crate) struct RedisTelemetry(pub(crate) Arc<PoolShared>);

impl Collector for RedisTelemetry {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = self.0.connections.status();
        let stood_in = self.0.fallbacks.is_any_active(self.0.state.up().is_some());
        let gauges = [
            (
                "continuum_cache_redis_connections_active",
                "Connections to Redis that are in use",
                status.size.saturating_sub(status.available),
            ),
            (
                "continuum_cache_redis_connections_idle",
                "Connections to Redis that wait for use",
                status.available,
            ),
            (
                "continuum_cache_fallback_active",
                "1 while Redis is away and memory stands in for it",
                usize::from(stood_in),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(u64::try_from(value).unwrap_or(u64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let help = "Operations on Redis that failed";
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut errors =
            encoder.encode_descriptor("continuum_cache_redis_errors", help, None, kind)?;
        for kind in FaultKind::ALL {
            ConstCounter::new(self.0.counters.faults(kind))
                .encode(errors.encode_family(&[("type", kind.as_str())])?)?;
        }
        Ok(())
    }
}
