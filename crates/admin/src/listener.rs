//! Serves the admin routes.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::Router;
use hyper::{Request, body::Incoming, service::Service as _};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use net::server::{Acceptor, ClientStream, ConnectionSlot, in_progress};
use supervision::{Task, contain};
use tokio::{sync::watch, task::JoinSet};

use crate::{Access, AdminParts, access, gauges::Gauges, kv_telemetry::KvCollector, routes};

/// Connection limit: operators, scrapers and a dashboard. At the limit the longest idle one yields
/// to a new one.
const MAX_CONNECTIONS: usize = 256;
/// Time limit of a request head.
const HEAD: Duration = Duration::from_secs(10);
/// Time limit of an idle connection.
const IDLE: Duration = Duration::from_secs(75);
/// Time after which a reader that takes nothing of its reply is dropped.
const STALL: Duration = Duration::from_secs(30);

/// Serves the admin routes on `listener` until `stop` is set.
pub async fn serve(
    parts: AdminParts,
    access: Access,
    listener: Arc<net::Listener>,
    stop: watch::Receiver<bool>,
) {
    {
        let mut registry = parts.metrics.registry.write();
        registry.register_collector(Box::new(Gauges::of(&parts)));
        registry.register_collector(Box::new(KvCollector::of(&parts)));
    }
    serve_routes(routes(parts, &access), access, listener, stop).await;
}

/// Serves `routes` to callers that `access` admits, until `stop` is set. Answers are short: those
/// still running then are cut.
pub async fn serve_routes(
    routes: Router,
    access: Access,
    listener: Arc<net::Listener>,
    mut stop: watch::Receiver<bool>,
) {
    let routes = routes.layer(axum::middleware::from_fn_with_state(
        Arc::new(access),
        access::check,
    ));
    let service = TowerToHyperService::new(routes);
    // Outside the accept task: a panic there costs no connection.
    let mut connections = JoinSet::new();
    let mut acceptor = Acceptor::new(listener, MAX_CONNECTIONS);
    let mut task = Task::new("admin_accept");
    while task
        .attempt(accept(&service, &mut acceptor, &mut stop, &mut connections))
        .await
        .is_none()
    {}
    drop(acceptor);
    connections.shutdown().await;
}

/// Accepts until `stop` is set.
async fn accept(
    service: &TowerToHyperService<Router>,
    acceptor: &mut Acceptor,
    stop: &mut watch::Receiver<bool>,
    connections: &mut JoinSet<()>,
) {
    loop {
        let (stream, slot) = tokio::select! {
            accepted = acceptor.next() => accepted,
            _ = stop.wait_for(|stopping| *stopping) => return,
        };
        while connections.try_join_next().is_some() {}
        let serving = connection(service.clone(), stream, slot);
        // A panic while answering costs only its connection.
        connections.spawn(async {
            let _ended = contain("admin_connection", serving).await;
        });
    }
}

async fn connection(
    routes: TowerToHyperService<Router>,
    stream: net::Stream,
    slot: ConnectionSlot,
) {
    let (stream, exchange) = ClientStream::new(stream, slot, HEAD, STALL);
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let (routes, exchange) = (routes.clone(), exchange.clone());
        async move {
            let answering = exchange.begin().await;
            let response = routes.call(request).await?;
            Ok::<_, Infallible>(response.map(|body| in_progress(body, answering)))
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        ended = served => ended,
        // The connection is idle: no request is lost.
        () = exchange.slot().must_close() => return,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "admin connection ended");
    }
}
