//! The known queries of operators of a router with these caches, verbatim.

/// Share of requests whose owner was above its cap.
pub(crate) const OVERFLOW_RATE: &str = r#"rate(continuum_prefix_routing_requests_total{strategy="overflow"}[5m])
/ rate(continuum_prefix_routing_requests_total[5m])"#;
pub(crate) const BACKEND_LOAD: &str = "continuum_prefix_routing_backend_distribution";
pub(crate) const CACHE_HIT_RATE: &str = r#"rate(continuum_response_cache_requests_total{result="hit"}[5m])
/ rate(continuum_response_cache_requests_total{result=~"hit|miss"}[5m])"#;
pub(crate) const CACHE_BYPASS_RATE: &str =
    r#"rate(continuum_response_cache_requests_total{result="skip"}[5m])"#;
pub(crate) const REDIS_GET_P99: &str = r#"histogram_quantile(0.99,
  rate(continuum_cache_redis_latency_seconds_bucket{operation="get"}[5m])
)"#;
pub(crate) const REDIS_ERROR_RATE: &str = "rate(continuum_cache_redis_errors_total[5m])";
/// An alert.
pub(crate) const FALLBACK_ACTIVE: &str = "continuum_cache_fallback_active == 1";
pub(crate) const KV_AWARE_RATE: &str = r#"rate(continuum_kv_index_routing_decisions_total{decision="kv_aware"}[5m])
/ rate(continuum_kv_index_routing_decisions_total[5m])"#;
pub(crate) const EVENT_DROP_RATE: &str = "rate(continuum_kv_event_dropped_total[5m])";
pub(crate) const OVERLAP_P50: &str =
    "histogram_quantile(0.50, rate(continuum_kv_index_overlap_score_bucket[5m]))";
/// An alert.
pub(crate) const CONSUMER_GONE: &str = "continuum_kv_consumer_connected == 0";

/// All eleven queries.
pub(crate) const ALL: [&str; 11] = [
    OVERFLOW_RATE,
    BACKEND_LOAD,
    CACHE_HIT_RATE,
    CACHE_BYPASS_RATE,
    REDIS_GET_P99,
    REDIS_ERROR_RATE,
    FALLBACK_ACTIVE,
    KV_AWARE_RATE,
    EVENT_DROP_RATE,
    OVERLAP_P50,
    CONSUMER_GONE,
];

/// Queries whose families the router does not have yet: those of the response cache. Empty this
/// list once it has them; the tests then switch the cache on and check these queries against the
/// traffic too.
pub(crate) const WITHOUT_FAMILIES_YET: &[&str] = &[];

/// Whether the router has the families of the response cache.
pub(crate) fn has_response_cache() -> bool {
    WITHOUT_FAMILIES_YET.is_empty()
}
