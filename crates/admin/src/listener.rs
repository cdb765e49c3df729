//! Serves the admin routes, and `/metrics` on a listener of its own if there is one.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::Router;
use hyper::{
    Request,
    body::{Body as _, Incoming},
    service::Service as _,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use net::server::{Acceptor, ClientStream, ConnectionSlot, in_progress};
use supervision::{Task, contain};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    Access, AdminParts,
    access::{self, Caller},
    gauges::Gauges,
    kv_telemetry::KvCollector,
    metrics_routes, response, routes,
};

/// Time limit of a request head.
const HEAD: Duration = Duration::from_secs(10);
/// Time limit of an idle connection.
const IDLE: Duration = Duration::from_secs(75);
/// Time after which a reader that takes nothing of its reply is dropped.
const STALL: Duration = Duration::from_secs(30);

/// A bound socket, and which of its callers are answered.
#[derive(Debug)]
pub struct ProtectedListener {
    /// The socket.
    pub listener: Arc<net::Listener>,
    /// The token and the addresses that a request must have.
    pub access: Access,
}

/// The sockets of this crate's routes; a router inside another program may have neither.
#[derive(Debug)]
pub struct AdminListeners {
    /// For operators: all routes.
    pub admin: Option<ProtectedListener>,
    /// For scrapers: `/metrics` alone.
    pub metrics: Option<ProtectedListener>,
}

/// How one listener accepts connections.
struct AcceptRules {
    /// Name of the accepting task.
    task: &'static str,
    /// Connection limit. At the limit the longest idle one yields to a new one.
    max_connections: usize,
}

/// Operators, scrapers and a dashboard.
const ADMIN: AcceptRules = AcceptRules {
    task: "admin_accept",
    max_connections: 256,
};
/// Scrapers.
const METRICS: AcceptRules = AcceptRules {
    task: "metrics_accept",
    max_connections: 64,
};

/// Serves the admin routes, and the metrics on their own listener, until `stop` is set. The gauges
/// of `parts` are registered when this function returns.
pub fn serve(
    parts: AdminParts,
    listeners: AdminListeners,
    stop: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send {
    {
        let mut registry = parts.metrics.registry.write();
        registry.register_collector(Box::new(Gauges::of(&parts)));
        registry.register_collector(Box::new(KvCollector::of(&parts)));
    }
    let AdminListeners { admin, metrics } = listeners;
    async move {
        let scraped = metrics.map(|metrics| {
            let routes = metrics_routes(parts.metrics.clone());
            accept_by(&METRICS, routes, metrics, stop.clone())
        });
        let operated = admin.map(|mut admin| {
            admin.access.audit.control = Some(Arc::clone(&parts.control));
            accept_by(&ADMIN, routes(parts), admin, stop)
        });
        tokio::join!(to_end(operated), to_end(scraped));
    }
}

/// Serves a listener, if there is one.
async fn to_end(served: Option<impl Future<Output = ()>>) {
    if let Some(served) = served {
        served.await;
    }
}

/// Serves `routes` to callers that the listener admits, until `stop` is set. Answers are short:
/// those still running then are cut.
pub async fn serve_routes(
    routes: Router,
    listener: ProtectedListener,
    stop: watch::Receiver<bool>,
) {
    accept_by(&ADMIN, routes, listener, stop).await;
}

async fn accept_by(
    rules: &AcceptRules,
    routes: Router,
    ProtectedListener { listener, access }: ProtectedListener,
    mut stop: watch::Receiver<bool>,
) {
    let routes = routes.layer(axum::middleware::from_fn_with_state(
        Arc::new(access),
        access::check,
    ));
    let service = TowerToHyperService::new(routes);
    // Outside the accept task: a panic there costs no connection.
    let mut connections = JoinSet::new();
    let mut acceptor = Acceptor::new(listener, rules.max_connections);
    let mut task = Task::new(rules.task);
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
    let service = hyper::service::service_fn(|mut request: Request<Incoming>| {
        let (routes, exchange) = (routes.clone(), exchange.clone());
        async move {
            let (answering, framing) = exchange.begin().await;
            let slot = exchange.slot();
            let caller = Caller {
                peer: slot.peer(),
                address: slot.address(),
            };
            request.extensions_mut().insert(caller);
            // No route reads the body of such a request, and what follows it is not answered.
            let is_unread = request.method().is_safe() && !request.body().is_end_stream();
            let mut response = match framing {
                Ok(()) => routes.call(request).await?,
                Err(error) => response::refused_framing(error),
            };
            if is_unread {
                response::close_connection(response.headers_mut());
            }
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
