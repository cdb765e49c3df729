//! `GET /admin/response-cache/stats` and `POST /admin/response-cache/invalidate`, with the keys
//! that operators of such a cache know (contract CK74, CK75). Our own keys follow them, and
//! `DELETE /admin/response-cache/entries`.

use std::{sync::Arc, time::Duration};

use ::response_cache::{CacheSelection, CacheStats, RedisStats, ResponseCache};
use api::{
    CacheCleared, CacheConfig, CacheRequests, InvalidateRequest, RedisConnections, RedisErrors,
    RedisReport, ResponseCacheStats,
};
use axum::{
    body::Bytes,
    extract::{Query, State, rejection::QueryRejection},
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use serde::Deserialize;

use crate::response;

pub(crate) async fn stats(State(cache): State<Arc<ResponseCache>>) -> Response {
    let (settings, stats) = (cache.settings(), cache.stats().await);
    let capacity = settings.capacity.get();
    response::json(&ResponseCacheStats {
        enabled: stats.enabled,
        backend_type: stats.backend_type.into(),
        entries: stats.entries,
        capacity,
        requests: CacheRequests {
            hit: stats.hits,
            miss: stats.misses,
            skip: stats.skips,
            total: stats.hits + stats.misses + stats.skips,
        },
        hit_rate: format!("{:.4}", hit_rate(&stats)),
        evictions: stats.evictions,
        size_bytes: stats.size_bytes,
        config: CacheConfig {
            backend: settings.backend.as_str().into(),
            ttl: written(settings.ttl),
            capacity,
            max_response_size: settings.max_response_size,
            max_stream_buffer_size: settings.max_stream_buffer_size,
        },
        redis: stats.redis.as_ref().map(connections),
        recent_hit_rate: stats.hit_rate,
        semantic_entries: stats.semantic_entries,
    })
}

/// Returns the hit rate over all looked-up requests, the base of the counts beside it.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn hit_rate(stats: &CacheStats) -> f64 {
    let looked_up = stats.hits + stats.misses;
    if looked_up == 0 {
        0.0
    } else {
        stats.hits as f64 / looked_up as f64
    }
}

fn connections(redis: &RedisStats) -> RedisReport {
    RedisReport {
        connections: RedisConnections {
            active: redis.active,
            idle: redis.idle,
        },
        fallback_active: redis.fallback_active,
        errors: RedisErrors {
            connection: redis.connection_errors,
            timeout: redis.timeout_errors,
            other: redis.other_errors,
        },
    }
}

/// Formats a duration as the configuration does.
fn written(time: Duration) -> String {
    let (seconds, millis) = (time.as_secs(), time.subsec_millis());
    match (seconds, millis) {
        (_, 1..) => format!("{}ms", time.as_millis()),
        (1.., _) if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        (1.., _) if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

pub(crate) async fn invalidate(State(cache): State<Arc<ResponseCache>>, body: Bytes) -> Response {
    let request = serde_json::from_slice::<InvalidateRequest>(&body);
    if !request.is_ok_and(|request| request.clear_all) {
        let message = r#"the body must be {"clear_all": true}: nothing was cleared"#;
        return response::error(&ApiError::new(ErrorCode::InvalidRequest, message));
    }
    clear(&cache, "clear_all", CacheSelection::ALL).await
}

/// Query of [`remove`].
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EntriesQuery {
    tenant: Option<String>,
    model: Option<String>,
}

/// `DELETE /admin/response-cache/entries`: the replies of a tenant, of a model, or of both.
pub(crate) async fn remove(
    State(cache): State<Arc<ResponseCache>>,
    query: Result<Query<EntriesQuery>, QueryRejection>,
) -> Response {
    let Query(query) = query.unwrap_or_default();
    let (tenant, model) = (query.tenant.as_deref(), query.model.as_deref());
    let action = match (tenant, model) {
        (Some(_), None) => "clear_tenant",
        (None, Some(_)) => "clear_model",
        (Some(_), Some(_)) => "clear_tenant_model",
        (None, None) => {
            let message =
                "name what to remove, as in ?tenant=NAME, ?model=NAME or both: nothing was cleared";
            return response::error(&ApiError::new(ErrorCode::InvalidRequest, message));
        }
    };
    clear(&cache, action, CacheSelection::of(tenant, model)).await
}

async fn clear(cache: &ResponseCache, action: &'static str, selection: CacheSelection) -> Response {
    match cache.clear(selection).await {
        Ok(cleared) => response::json(&CacheCleared {
            success: true,
            action: action.into(),
            cleared_entries: cleared,
        }),
        Err(fault) => {
            let message = format!(
                "not all could be cleared: {fault}; what lies in memory is gone, try again for the rest"
            );
            response::error(&ApiError::new(ErrorCode::Internal, message))
        }
    }
}

pub(crate) async fn delete_only() -> Response {
    let message = "/admin/response-cache/entries answers DELETE only";
    response::error(&ApiError::new(ErrorCode::MethodNotAllowed, message))
}

pub(crate) async fn post_only() -> Response {
    let message = "/admin/response-cache/invalidate answers POST only";
    response::error(&ApiError::new(ErrorCode::MethodNotAllowed, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_a_configuration() {
        for (time, text) in [
            (Duration::from_secs(300), "5m"),
            (Duration::from_secs(1_800), "30m"),
            (Duration::from_secs(7_200), "2h"),
            (Duration::from_secs(90), "90s"),
            (Duration::from_millis(1_500), "1500ms"),
            (Duration::ZERO, "0s"),
        ] {
            assert_eq!(written(time), text);
        }
    }
}
