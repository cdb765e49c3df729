//! The operators' listener: the router's state, its decisions and its metrics, which may have a
//! listener of their own too.
//!
//! It only reads, and passes changes to [`Control`]; the request path does not know it exists. No
//! answer contains prompt text.
//!
//! **Invariant**: off loopback nothing is answered without the token; on loopback only to a `Host`
//! that is this machine, so that a page in a browser cannot read it under another name.

mod access;
mod access_metrics;
mod conductor;
mod config_view;
mod control;
mod decisions;
mod doctor;
mod drain;
mod family_encoder;
mod gauges;
mod kv_events;
mod kv_index_routes;
mod kv_index_stats;
mod kv_telemetry;
mod list_limit;
mod listener;
mod metrics;
mod models;
mod openapi;
mod parity_report;
mod parts;
mod prefix_stats;
mod reload;
mod replicas;
mod response;
mod response_cache;
mod route;
mod sessions;
mod streams;
mod takeover;
mod tenants;
mod totals;
mod worker_changes;
mod workers;

use std::sync::Arc;

use axum::{
    Router as Routes,
    extract::DefaultBodyLimit,
    routing::{MethodRouter, delete, get, post},
};

pub use access::{
    Access, AuditFile, AuditFileError, AuditSinks, SharedToken, Token, Tokens, TooShort,
};
pub use conductor::residents;
pub use control::{Control, DrainRequest, NamedWorker, WorkerRejection};
pub use doctor::Doctor;
pub use drain::{Drain, DrainStatus};
pub use listener::{AdminListeners, ProtectedListener, serve, serve_routes};
pub use metrics::MetricsPage;
pub use parts::{AdminParts, DecisionParts, KvIndexParts, ShutdownParts};
pub use route::DryRun;
pub use takeover::Takeover;

/// Body limit of a call that changes something, in bytes.
const SHORT_BODY: usize = 256 * 1024;

/// Returns all routes of the listener. An unknown path answers `unknown_route`.
pub(crate) fn routes(parts: AdminParts) -> Routes {
    let conductor = indexer::routes(Arc::clone(&parts.kv_index.indexer));
    let mut routes = Routes::new();
    for (path, methods) in own_routes(parts.decisions.dry_run.max_body_bytes) {
        routes = routes.route(path, methods);
    }
    routes
        .fallback(response::unknown_route)
        .method_not_allowed_fallback(response::method_not_allowed)
        .with_state(parts)
        .merge(conductor)
}

/// Returns the only route of the metrics listener.
pub(crate) fn metrics_routes(page: MetricsPage) -> Routes {
    Routes::new()
        .route("/metrics", get(metrics::text))
        .fallback(response::only_metrics)
        .method_not_allowed_fallback(response::method_not_allowed)
        .with_state(page)
}

/// A path and what its methods do.
type Route = (&'static str, MethodRouter<AdminParts>);

/// Returns the routes of this crate; `api::openapi` describes each, with the role that it needs. `longest` is the limit of a
/// request's body, in bytes.
fn own_routes(longest: usize) -> Vec<Route> {
    let mut all = changing_routes(longest);
    all.extend([
        ("/metrics", get(metrics::text)),
        ("/openapi.json", get(openapi::document)),
        ("/admin/config", get(config_view::show)),
        ("/admin/config/history", get(reload::history)),
        ("/admin/stats", get(totals::stats)),
        ("/admin/drain/status", get(drain::status)),
        ("/admin/decisions", get(decisions::list)),
        ("/admin/decisions/{id}", get(decisions::one)),
        ("/admin/doctor", get(doctor::report)),
        ("/admin/parity", get(parity_report::report)),
        ("/admin/prefix-routing/stats", get(prefix_stats::stats)),
        ("/admin/streams", get(streams::list)),
        ("/admin/replicas", get(replicas::list)),
        ("/admin/replicas/feed", get(replicas::feed)),
        ("/admin/replicas/state", get(replicas::state)),
        ("/admin/replicas/snapshot", get(replicas::snapshot)),
        ("/admin/models", get(models::list)),
        ("/admin/sessions", get(sessions::report)),
        ("/admin/tenants", get(tenants::list)),
        ("/admin/kv-index/digest", get(kv_index_routes::digest)),
        ("/admin/kv-index/dump", get(kv_index_routes::dump)),
        ("/admin/kv-index/stats", get(kv_index_stats::stats)),
        ("/admin/kv-index/backends", get(kv_index_stats::backends)),
        ("/admin/response-cache/stats", get(response_cache::stats)),
        ("/v1/kv_events", kv_events::route()),
    ]);
    all
}

/// Returns the routes that take a body.
fn changing_routes(longest: usize) -> Vec<Route> {
    let short = || DefaultBodyLimit::max(SHORT_BODY);
    vec![
        (
            "/admin/workers",
            get(workers::list).post(worker_changes::add).layer(short()),
        ),
        (
            "/admin/workers/{name}",
            get(workers::one)
                .put(worker_changes::put)
                .delete(worker_changes::remove)
                .layer(short()),
        ),
        (
            "/admin/workers/{name}/drain",
            config_call(post(worker_changes::drain)),
        ),
        (
            "/admin/workers/{name}/resume",
            config_call(post(worker_changes::resume)),
        ),
        (
            "/admin/config/rollback",
            config_call(post(reload::rollback)),
        ),
        ("/admin/takeover", config_call(post(takeover::hand_over))),
        ("/admin/reload", config_call(post(reload::reload))),
        (
            "/admin/drain",
            post(drain::begin)
                .layer(DefaultBodyLimit::max(4096))
                .fallback(drain::post_only),
        ),
        (
            "/admin/kv-index/clear",
            post(kv_index_stats::clear).fallback(kv_index_stats::post_only),
        ),
        (
            "/admin/response-cache/invalidate",
            post(response_cache::invalidate)
                .layer(short())
                .fallback(response_cache::post_only),
        ),
        (
            "/admin/response-cache/entries",
            delete(response_cache::remove).fallback(response_cache::delete_only),
        ),
        (
            "/v1/route",
            post(route::dry_run)
                .layer(DefaultBodyLimit::max(longest))
                .fallback(route::post_only),
        ),
    ]
}

/// A call that changes the configuration or the process.
fn config_call(methods: MethodRouter<AdminParts>) -> MethodRouter<AdminParts> {
    methods
        .layer(DefaultBodyLimit::max(SHORT_BODY))
        .fallback(reload::post_only)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::openapi::{Listener, operations};

    use super::*;

    #[test]
    fn the_openapi_document_has_every_path_of_the_listener_and_no_other() {
        let own = own_routes(1).into_iter().map(|(path, _)| path);
        let served: BTreeSet<&str> = own.chain(indexer::PATHS).collect();
        let described: BTreeSet<&str> = operations()
            .iter()
            .filter(|operation| operation.listener != Listener::Data)
            .map(|operation| operation.path)
            .collect();
        assert_eq!(described, served);
    }
}
