//! The metric families of Redis connections in a program without them: dashboards find every name
//! in any case.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{
        counter::ConstCounter,
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
};

/// Reports 0 for every metric.
#[derive(Debug)]
pub(crate) struct NoRedis;

impl Collector for NoRedis {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help) in [
            (
                "continuum_cache_redis_connections_active",
                "Connections to Redis that are in use",
            ),
            (
                "continuum_cache_redis_connections_idle",
                "Connections to Redis that wait for use",
            ),
            (
                "continuum_cache_fallback_active",
                "1 while Redis is away and memory stands in for it",
            ),
        ] {
            let gauge = ConstGauge::new(0_u64);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let none = ConstCounter::new(0_u64);
        let help = "Operations on Redis that failed";
        let mut errors = encoder.encode_descriptor(
            "continuum_cache_redis_errors",
            help,
            None,
            none.metric_type(),
        )?;
        for kind in ["connection", "timeout", "other"] {
            none.encode(errors.encode_family(&[("type", kind)])?)?;
        }
        let help = "Time that Redis took to answer, the wait for a connection included";
        let empty = || Histogram::new(exponential_buckets(5e-5, 2.0, 16));
        let name = "continuum_cache_redis_latency_seconds";
        let mut latency = encoder.encode_descriptor(name, help, None, empty().metric_type())?;
        for operation in ["get", "set", "delete"] {
            empty().encode(latency.encode_family(&[("operation", operation)])?)?;
        }
        Ok(())
    }
}
