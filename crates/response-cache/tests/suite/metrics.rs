//! Every family and every label is present from the start, at 0.

use contract_id::contract;

use crate::{redis_server::RedisServer, start, try_start};

/// All families that dashboards use, besides the histograms.
const NAMES: [&str; 38] = [
    "continuum_response_cache_requests_total{result=\"hit\"}",
    "continuum_response_cache_requests_total{result=\"miss\"}",
    "continuum_response_cache_requests_total{result=\"skip\"}",
    "continuum_response_cache_entries",
    "continuum_response_cache_size_bytes",
    "continuum_response_cache_hit_rate",
    "continuum_response_cache_evictions_total",
    "continuum_cache_backend_type{backend=\"redis\"}",
    "continuum_cache_backend_type{backend=\"tiered\"}",
    "continuum_cache_redis_connections_active",
    "continuum_cache_redis_connections_idle",
    "continuum_cache_redis_errors_total{type=\"connection\"}",
    "continuum_cache_redis_errors_total{type=\"timeout\"}",
    "continuum_cache_redis_errors_total{type=\"other\"}",
    "continuum_cache_redis_latency_seconds_count{operation=\"get\"}",
    "continuum_cache_redis_latency_seconds_count{operation=\"set\"}",
    "continuum_cache_redis_latency_seconds_count{operation=\"delete\"}",
    "continuum_cache_fallback_active",
    "continuum_cache_tier_requests_total{tier=\"l1\",result=\"hit\"}",
    "continuum_cache_tier_requests_total{tier=\"l1\",result=\"miss\"}",
    "continuum_cache_tier_requests_total{tier=\"l2\",result=\"hit\"}",
    "continuum_cache_tier_requests_total{tier=\"l2\",result=\"miss\"}",
    "continuum_cache_promotions_total",
    "continuum_cache_demotions_total",
    "continuum_cache_s3_latency_seconds_count{operation=\"get\"}",
    "continuum_cache_s3_latency_seconds_count{operation=\"put\"}",
    "continuum_cache_s3_latency_seconds_count{operation=\"delete\"}",
    "warmroute_cache_lookups_abandoned_total",
    "warmroute_cache_writes_dropped_total",
    "warmroute_cache_auth_failures_total",
    "warmroute_s3_errors_total{code=\"403\"}",
    "warmroute_s3_errors_total{code=\"404\"}",
    "warmroute_s3_errors_total{code=\"500\"}",
    "warmroute_s3_errors_total{code=\"503\"}",
    "warmroute_s3_errors_total{code=\"timeout\"}",
    "warmroute_s3_errors_total{code=\"connection\"}",
    "warmroute_s3_errors_total{code=\"corrupt\"}",
    "warmroute_s3_errors_total{code=\"other\"}",
];

#[tokio::test]
#[contract("CK68", "CK69", "CH26")]
async fn every_family_starts_at_0_with_a_disabled_cache_and_with_memory() {
    for cache in [try_start("enabled: false").unwrap(), start("capacity: 1")] {
        for name in NAMES {
            assert_eq!(cache.metric(name), 0.0, "{name}");
        }
        assert_eq!(
            cache.metric("continuum_cache_backend_type{backend=\"memory\"}"),
            1.0
        );
        each_once(&cache.metrics());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK69")]
async fn with_redis_every_family_is_present_once() {
    test_programs::require!(RedisServer);
    let server = RedisServer::start();
    let cache = start(&format!(
        "backend: redis, redis: {{url: \"{}\"}}",
        server.url()
    ));
    for name in NAMES
        .into_iter()
        .chain(["continuum_cache_backend_type{backend=\"memory\"}"])
    {
        // The connection's own counters are not 0 for long.
        let expected =
            (name.starts_with("continuum_cache_backend_type{backend=\"redis\"")).then_some(1.0);
        let found = cache.metric(name);
        assert!(
            expected.is_none_or(|expected| found == expected),
            "{name}: {found}"
        );
    }
    each_once(&cache.metrics());
}

/// A duplicate name makes the whole page unreadable.
fn each_once(page: &str) {
    let mut samples: Vec<&str> = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|it| it.0)
        .collect();
    let all = samples.len();
    samples.sort_unstable();
    samples.dedup();
    assert_eq!(samples.len(), all, "{page}");
    let mut types: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("# TYPE"))
        .collect();
    let all = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), all, "{page}");
}
