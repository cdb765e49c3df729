//! `GET /admin/kv-index/stats` and `/backends`, `POST /admin/kv-index/clear`: the content of the
//! block index and the prefix view, and the streams of the latter.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use dialect::{ApiError, ErrorCode};
use fleet::{PrefixStream, PrefixViewService};
use prefix_view::{BackendStats, EventKind, ViewStats};
use routing::DistributionSnapshot;
use serde_json::{Value, json};

use crate::{AdminParts, response};

pub(crate) async fn stats(State(parts): State<Arc<AdminParts>>) -> Response {
    let prefixes = parts.fleet.prefixes();
    let view = prefixes
        .map(|prefixes| prefixes.view().stats())
        .unwrap_or_default();
    let (config, blocks) = (parts.fleet.kv_cache_index(), parts.index.stats());
    let (scoring, decided) = (&config.scoring, parts.kv_tally.counts());
    let overlaps = parts.kv_tally.overlaps();
    response::json(&json!({
        "enabled": prefixes.is_some(),
        "config": {
            "backend": if config.redis.is_some() { "redis" } else { "memory" },
            "max_entries": config.max_entries.get(),
            "entry_ttl_seconds": config.entry_ttl.as_secs(),
            "event_sources_count": config.event_sources.len(),
            "scoring": {
                "overlap_weight": scoring.overlap_weight, "load_weight": scoring.load_weight,
                "health_weight": scoring.health_weight, "min_overlap_threshold": scoring.min_overlap_threshold,
            },
        },
        "index": {
            "prefix_count": view.prefixes, "entry_count": view.entries,
            "total_hits": view.hits, "total_evictions": view.evicted_entries,
        },
        "event_sources": prefixes.map(sources).unwrap_or_default(),
        "routing_decisions": {
            "kv_aware": decided.kv_aware, "fallback": decided.fallback, "total": decided.total(),
        },
        "query_latency_count": parts.kv_tally.queries().count(),
        "overlap_score_count": overlaps.count(),
        "overlap_scores": {"mean": overlaps.mean(), "distribution": ranges(&overlaps)},
        "blocks": {
            "namespaces": blocks.namespaces, "distinct": blocks.distinct, "memberships": blocks.memberships,
            "speculative": blocks.speculative, "predicted": blocks.predicted, "orphans": blocks.orphans,
            "bytes": blocks.bytes, "budget_bytes": blocks.budget_bytes, "shed": blocks.shed,
        },
    }))
}

fn sources(prefixes: &PrefixViewService) -> Vec<Value> {
    let of = |stream: PrefixStream| {
        let report = &stream.report;
        json!({
            "backend_name": report.worker, "connected": stream.connected,
            "events_received": received(&stream), "events_dropped": report.counts.dropped,
            "last_event_at": report.last_event_at, "reconnect_count": stream.reconnects,
            "events_per_second": stream.events_per_second,
        })
    };
    prefixes.streams().into_iter().map(of).collect()
}

/// Returns the received events, including dropped ones.
fn received(stream: &PrefixStream) -> u64 {
    stream
        .report
        .counts
        .events
        .saturating_add(stream.report.counts.dropped)
}

/// Returns the number of values in each range, which ends at `up_to`. The highest score is 1, so no
/// value is beyond the last range.
fn ranges(spread: &DistributionSnapshot) -> Vec<Value> {
    let bounded = spread.ranges.iter().filter(|(up_to, _)| up_to.is_finite());
    bounded
        .map(|(up_to, count)| json!({"up_to": up_to, "count": count}))
        .collect()
}

pub(crate) async fn backends(State(parts): State<Arc<AdminParts>>) -> Response {
    let prefixes = parts.fleet.prefixes();
    let view = prefixes
        .map(|prefixes| prefixes.view().stats())
        .unwrap_or_default();
    let streams = prefixes.map(PrefixViewService::streams).unwrap_or_default();
    let rows: Vec<Value> = streams
        .iter()
        .map(|stream| backend(stream, &view))
        .collect();
    response::json(&json!({"enabled": prefixes.is_some(), "backends": rows}))
}

fn backend(stream: &PrefixStream, view: &ViewStats) -> Value {
    let report = &stream.report;
    let own = view
        .backends
        .iter()
        .find(|own| own.backend == report.worker);
    let events = |kind: EventKind| own.map_or(0, |own| own.events[kind.index()]);
    let held = |count: fn(&BackendStats) -> u64| own.map_or(0, count);
    json!({
        "backend_name": report.worker,
        "connection": {
            "connected": stream.connected, "reconnect_count": stream.reconnects, "last_event_at": report.last_event_at,
        },
        "events": {
            "received": received(stream), "processed": report.counts.applied, "dropped": report.counts.dropped,
            "index_created": events(EventKind::Created), "index_evicted": events(EventKind::Evicted),
        },
        "held": {"gpu_hot": held(|own| own.hot), "storage_warm": held(|own| own.warm)},
    })
}

/// Empties the prefix view, but not the block index: no stream would announce its content again.
pub(crate) async fn clear(State(parts): State<Arc<AdminParts>>) -> Response {
    let Some(prefixes) = parts.fleet.prefixes() else {
        let message = "there is no view of prefixes to clear: kv_cache_index.enabled is false";
        return response::error(&ApiError::new(ErrorCode::InvalidRequest, message));
    };
    let before = prefixes.view().stats().entries;
    match prefixes.view().clear() {
        Ok(cleared) => response::json(&json!({
            "success": true, "entries_before_clear": before, "cleared_entries": cleared.entries,
        })),
        Err(unavailable) => {
            response::error(&ApiError::new(ErrorCode::Internal, unavailable.to_string()))
        }
    }
}

pub(crate) async fn post_only() -> Response {
    let message = "/admin/kv-index/clear answers POST only";
    response::error(&ApiError::new(ErrorCode::MethodNotAllowed, message))
}
