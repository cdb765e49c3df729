//! Serving the routes.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{sync::watch, task::JoinSet};

use crate::{Access, AdminParts, access, gauges::Gauges, kv_telemetry::KvCollector, routes};

/// Connections at once: operators, scrapers and a dashboard. One more waits in the kernel's backlog.
const MAX_CONNECTIONS: usize = 256;
/// A head must be complete, and an idle connection used again, within this.
const IDLE: Duration = Duration::from_secs(75);
/// A reader that takes nothing of its reply for so long is given up.
const STALL: Duration = Duration::from_secs(30);

/// Serves the admin routes on `listener` until `stop` says so.
pub async fn serve(parts: AdminParts, access: Access, listener: Arc<net::Listener>, stop: watch::Receiver<bool>) {
    {
        let mut registry = parts.registry.write();
        registry.register_collector(Box::new(Gauges::of(&parts)));
        registry.register_collector(Box::new(KvCollector::of(&parts)));
    }
    serve_routes(routes(parts, &access), access, listener, stop).await;
}

/// Serves `routes` to whom `access` lets in, until `stop` says so. Answers are short: what runs then is cut.
pub async fn serve_routes(
    routes: Router,
    access: Access,
    listener: Arc<net::Listener>,
    mut stop: watch::Receiver<bool>,
) {
    let routes = routes.layer(axum::middleware::from_fn_with_state(Arc::new(access), access::check));
    let service = TowerToHyperService::new(routes);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => accepted,
            Some(_) = connections.join_next() => continue,
            _ = stop.wait_for(|stopping| *stopping) => break,
        };
        let Ok(stream) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let service = service.clone();
        connections.spawn(async move {
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .serve_connection(TokioIo::new(net::Stalling::new(stream, STALL)), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "admin connection ended");
            }
        });
    }
    drop(listener);
    connections.shutdown().await;
}
