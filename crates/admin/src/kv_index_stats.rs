//! `GET /admin/kv-index/stats` and `/backends`, `POST /admin/kv-index/clear`: the content of the
//! block index and the prefix view, and the streams of the latter.

use std::sync::Arc;

use api::{
    BackendConnection, BackendEvents, BackendHoldings, BackendReport, BlockStats, CountRange,
    EventSourceReport, IndexEntryStats, KvDecisionCounts, KvIndexBackend, KvIndexBackends,
    KvIndexCleared, KvIndexConfig, KvIndexStats, OverlapScores, ScoringConfig,
};
use axum::{extract::State, response::Response};
use dialect::{ApiError, ErrorCode};
use fleet::{Fleet, PrefixStream, PrefixViewService};
use kv_index::KvIndex;
use prefix_view::{BackendStats, EventKind, ViewStats};
use routing::DistributionSnapshot;

use crate::{KvIndexParts, response};

pub(crate) async fn stats(
    State(fleet): State<Arc<Fleet>>,
    State(KvIndexParts {
        index, counters, ..
    }): State<KvIndexParts>,
) -> Response {
    let prefixes = fleet.prefixes();
    let view = view_stats(&fleet);
    let decided = counters.counts();
    let overlaps = counters.overlaps();
    response::json(&KvIndexStats {
        enabled: prefixes.is_some(),
        config: configuration(&fleet),
        index: IndexEntryStats {
            prefix_count: view.prefixes,
            entry_count: view.entries,
            total_hits: view.hits,
            total_evictions: view.evicted_entries,
        },
        event_sources: prefixes.map(sources).unwrap_or_default(),
        routing_decisions: KvDecisionCounts {
            kv_aware: decided.kv_aware,
            fallback: decided.fallback,
            total: decided.total(),
        },
        query_latency_count: counters.queries().count(),
        overlap_score_count: overlaps.count(),
        overlap_scores: OverlapScores {
            mean: overlaps.mean(),
            distribution: ranges(&overlaps),
        },
        blocks: blocks(&index),
    })
}

fn view_stats(fleet: &Fleet) -> ViewStats {
    let prefixes = fleet.prefixes();
    prefixes
        .map(|prefixes| prefixes.view().stats())
        .unwrap_or_default()
}

fn configuration(fleet: &Fleet) -> KvIndexConfig {
    let config = fleet.kv_cache_index();
    let scoring = &config.scoring;
    KvIndexConfig {
        backend: if config.redis.is_some() {
            KvIndexBackend::Redis
        } else {
            KvIndexBackend::Memory
        },
        max_entries: config.max_entries.get(),
        entry_ttl_seconds: config.entry_ttl.as_secs(),
        event_sources_count: config.event_sources.len(),
        scoring: ScoringConfig {
            overlap_weight: scoring.overlap_weight,
            load_weight: scoring.load_weight,
            health_weight: scoring.health_weight,
            min_overlap_threshold: scoring.min_overlap_threshold,
        },
    }
}

fn blocks(index: &KvIndex) -> BlockStats {
    let blocks = index.stats();
    BlockStats {
        namespaces: blocks.namespaces,
        distinct: blocks.distinct,
        memberships: blocks.memberships,
        speculative: blocks.speculative,
        predicted: blocks.predicted,
        orphans: blocks.orphans,
        bytes: blocks.bytes,
        budget_bytes: blocks.budget_bytes,
        shed: blocks.shed,
    }
}

fn sources(prefixes: &PrefixViewService) -> Vec<EventSourceReport> {
    let of = |stream: PrefixStream| EventSourceReport {
        events_received: received(&stream),
        backend_name: stream.report.worker,
        connected: stream.connected,
        events_dropped: stream.report.counts.dropped,
        last_event_at: stream.report.last_event_at,
        reconnect_count: stream.reconnects,
        events_per_second: stream.events_per_second,
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
fn ranges(spread: &DistributionSnapshot) -> Vec<CountRange> {
    let bounded = spread.ranges.iter().filter(|(up_to, _)| up_to.is_finite());
    bounded
        .map(|&(up_to, count)| CountRange { up_to, count })
        .collect()
}

pub(crate) async fn backends(State(fleet): State<Arc<Fleet>>) -> Response {
    let prefixes = fleet.prefixes();
    let view = view_stats(&fleet);
    let streams = prefixes.map(PrefixViewService::streams).unwrap_or_default();
    response::json(&KvIndexBackends {
        enabled: prefixes.is_some(),
        backends: streams
            .into_iter()
            .map(|stream| backend(stream, &view))
            .collect(),
    })
}

fn backend(stream: PrefixStream, view: &ViewStats) -> BackendReport {
    let received = received(&stream);
    let report = stream.report;
    let own = view
        .backends
        .iter()
        .find(|own| own.backend == report.worker);
    let events = |kind: EventKind| own.map_or(0, |own| own.events[kind.index()]);
    let count_of = |count: fn(&BackendStats) -> u64| own.map_or(0, count);
    BackendReport {
        connection: BackendConnection {
            connected: stream.connected,
            reconnect_count: stream.reconnects,
            last_event_at: report.last_event_at,
        },
        events: BackendEvents {
            received,
            processed: report.counts.applied,
            dropped: report.counts.dropped,
            index_created: events(EventKind::Created),
            index_evicted: events(EventKind::Evicted),
        },
        held: BackendHoldings {
            gpu_hot: count_of(|own| own.hot),
            storage_warm: count_of(|own| own.warm),
        },
        backend_name: report.worker,
    }
}

/// Empties the prefix view, but not the block index: no stream would announce its content again.
pub(crate) async fn clear(State(fleet): State<Arc<Fleet>>) -> Response {
    let Some(prefixes) = fleet.prefixes() else {
        let message = "there is no view of prefixes to clear: kv_cache_index.enabled is false";
        return response::error(&ApiError::new(ErrorCode::InvalidRequest, message));
    };
    let before = prefixes.view().stats().entries;
    match prefixes.view().clear() {
        Ok(cleared) => response::json(&KvIndexCleared {
            success: true,
            entries_before_clear: before,
            cleared_entries: cleared.entries,
        }),
        Err(unavailable) => {
            response::error(&ApiError::new(ErrorCode::Internal, unavailable.to_string()))
        }
    }
}

pub(crate) async fn post_only() -> Response {
    let message = "/admin/kv-index/clear answers POST only";
    response::error(&ApiError::new(ErrorCode::MethodNotAllowed, message))
}
