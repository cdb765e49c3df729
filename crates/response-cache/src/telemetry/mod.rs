//! The metric families of the cache. Labels come from enums, and every combination exists from the
//! start.

mod no_redis;

use std::{fmt, sync::Arc};

use config::CacheBackend;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

pub(crate) use self::no_redis::NoRedis;
use crate::{
    CacheResult, ResponseCache,
    counters::{CacheTier, S3Code},
};

/// Reads the cache at each scrape.
#[derive(Debug)]
pub(crate) struct CacheTelemetry(pub(crate) Arc<ResponseCache>);

impl Collector for CacheTelemetry {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let cache = &*self.0;
        requests(&mut encoder, cache)?;
        backends(&mut encoder, cache)?;
        sizes(&mut encoder, cache)?;
        tiers(&mut encoder, cache)?;
        totals(&mut encoder, cache)?;
        object_store_errors(&mut encoder, cache)
    }
}

fn requests(encoder: &mut DescriptorEncoder<'_>, cache: &ResponseCache) -> fmt::Result {
    let counts = cache.counters();
    let requests =
        CacheResult::ALL.map(|what| ([("result", what.as_str())], counts.requests(what)));
    counters(
        encoder,
        "continuum_response_cache_requests",
        "Requests by what the cache had for them",
        requests,
    )
}

fn backends(encoder: &mut DescriptorEncoder<'_>, cache: &ResponseCache) -> fmt::Result {
    let backend = cache.settings().backend;
    let backends =
        CacheBackend::ALL.map(|one| ([("backend", one.as_str())], u64::from(one == backend)));
    gauges(
        encoder,
        "continuum_cache_backend_type",
        "1 for the place where replies are kept",
        backends,
    )
}

/// The size and the hit rate.
fn sizes(encoder: &mut DescriptorEncoder<'_>, cache: &ResponseCache) -> fmt::Result {
    let local = cache.local_stats();
    for (name, help, value) in [
        (
            "continuum_response_cache_entries",
            "Replies kept, in Redis as counted a while ago",
            cache.entries(),
        ),
        (
            "continuum_response_cache_size_bytes",
            "Bytes that those in this process take",
            local.bytes,
        ),
    ] {
        let gauge = ConstGauge::new(value);
        gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
    }
    let rate = ConstGauge::new(cache.hit_rate());
    let help = "Share of lookups of the last five minutes that found something, 0 to 1";
    let name = "continuum_response_cache_hit_rate";
    rate.encode(encoder.encode_descriptor(name, help, None, rate.metric_type())?)?;
    Ok(())
}

fn tiers(encoder: &mut DescriptorEncoder<'_>, cache: &ResponseCache) -> fmt::Result {
    let counts = cache.counters();
    let tiers = CacheTier::ALL.into_iter().flat_map(|tier| {
        let labels = |result| [("tier", tier.as_str()), ("result", result)];
        [
            (labels("hit"), counts.tier_requests(tier, true)),
            (labels("miss"), counts.tier_requests(tier, false)),
        ]
    });
    counters(
        encoder,
        "continuum_cache_tier_requests",
        "Lookups in a tier by what it had",
        tiers,
    )
}

fn totals(encoder: &mut DescriptorEncoder<'_>, cache: &ResponseCache) -> fmt::Result {
    let (counts, local) = (cache.counters(), cache.local_stats());
    for (name, help, value) in [
        (
            "continuum_response_cache_evictions",
            "Replies that had to leave memory before their time",
            local.evictions + counts.evictions.get(),
        ),
        (
            "continuum_cache_promotions",
            "Replies copied to the first tier",
            counts.promotions.get(),
        ),
        (
            "continuum_cache_demotions",
            "Replies too long for the first tier",
            counts.demotions.get(),
        ),
        (
            "warmroute_cache_lookups_abandoned",
            "Lookups that were not waited for any longer",
            counts.lookups_abandoned.get(),
        ),
        (
            "warmroute_cache_writes_dropped",
            "Replies that were to be kept and are not",
            counts.writes_dropped.get(),
        ),
        (
            "warmroute_cache_auth_failures",
            "Replies found in a shared store that are not as this fleet wrote them",
            counts.auth_failures.get(),
        ),
    ] {
        let counter = ConstCounter::new(value);
        counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
    }
    Ok(())
}

fn object_store_errors(encoder: &mut DescriptorEncoder<'_>, cache: &ResponseCache) -> fmt::Result {
    let counts = cache.counters();
    let errors = S3Code::ALL.map(|code| ([("code", code.as_str())], counts.s3_errors(code)));
    counters(
        encoder,
        "warmroute_s3_errors",
        "Operations on the object store that failed",
        errors,
    )
}

fn counters<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'static str, &'static str); N], u64)>,
) -> fmt::Result {
    let mut family =
        encoder.encode_descriptor(name, help, None, ConstCounter::new(0_u64).metric_type())?;
    for (labels, value) in values {
        ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn gauges<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([(&'static str, &'static str); N], u64)>,
) -> fmt::Result {
    let mut family =
        encoder.encode_descriptor(name, help, None, ConstGauge::new(0_u64).metric_type())?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
