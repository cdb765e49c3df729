//! The data listener: accepts connections, speaks HTTP/1 with hard limits, and drains.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{HeaderValue, header::CONNECTION};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use net::server::{Acceptor, ClientStream, ConnectionSlot, in_progress};
use proxy::RequestBody;
use tokio::{sync::watch, task::JoinSet};

use crate::{CurrentGateway, Gateway, housekeeping, request};

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainResult {
    /// Connections that still carried a request at the end of the drain time, and were cut.
    pub cut: usize,
}

/// The phase of the listener, set from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListenerPhase {
    /// Accepts and serves.
    #[default]
    Run,
    /// Readiness fails; the listener still accepts and serves, and ends each connection with its
    /// next reply.
    Leaving,
    /// Like `Leaving`, while another process accepts connections.
    HandedOver,
    /// Accepts nothing new, lets running requests end.
    Drain,
    /// Aborts what still runs.
    Cut,
}

/// Largest head that is read at all, in bytes; the configured limit is checked afterwards, with a
/// proper error.
const READ_BUFFER: usize = 64 * 1024;
/// Most header fields of a request.
const MAX_HEADERS: usize = 100;
/// Time without progress after which a client that does not read its reply is disconnected.
const CLIENT_STALL: Duration = Duration::from_secs(300);
/// Time for an aborted request to send its error. A client that does not read it is not waited for.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Panics of the accept loop, without ten quiet seconds between them, after which it gives up: some
/// two seconds of pauses.
const MOST_PANICS: u32 = 6;

/// Serves `listeners` until `phase` says otherwise, then lets running requests end until `phase`
/// aborts them. If it can no longer accept, [`CurrentGateway::failed`] resolves; running requests
/// continue until `phase` says otherwise.
pub async fn serve(
    gateway: Arc<CurrentGateway>,
    listeners: net::Listeners,
    phase: watch::Receiver<ListenerPhase>,
) -> DrainResult {
    let unfinished = ServingGuard(&gateway);
    let housekeeping = housekeeping::start(&gateway);
    let drained = accept_and_drain(Arc::clone(&gateway), listeners, phase).await;
    drop(housekeeping);
    std::mem::forget(unfinished);
    drained
}

/// Dropped only if serving ends without a drain.
struct ServingGuard<'a>(&'a CurrentGateway);

impl Drop for ServingGuard<'_> {
    fn drop(&mut self) {
        self.0.current().fail();
    }
}

async fn accept_and_drain(
    gateway: Arc<CurrentGateway>,
    listeners: net::Listeners,
    mut phase: watch::Receiver<ListenerPhase>,
) -> DrainResult {
    let mut acceptor = Acceptor::new(
        listeners,
        gateway.current().edge.admission.process.max_connections,
    );
    let announced = runtime::spawn(announce(gateway.current(), phase.clone()));
    // Outside the accept loop: a panic there costs no connection.
    let mut connections = JoinSet::new();
    let mut accepting = supervision::Task::new("accept");
    loop {
        match accepting
            .run(accept(
                &gateway,
                &mut acceptor,
                &mut phase,
                &mut connections,
            ))
            .await
        {
            Ok(()) => break,
            Err(panicked) if panicked.in_a_row >= MOST_PANICS => {
                gateway.current().fail();
                break;
            }
            // Meanwhile connections wait in the kernel's backlog.
            Err(_) => tokio::select! {
                () = accepting.pause() => {}
                () = reached(&mut phase, ListenerPhase::HandedOver) => break,
            },
        }
    }
    if let Some((stream, slot)) = acceptor.stop() {
        connections.spawn(connection(
            Arc::clone(&gateway),
            stream,
            slot,
            phase.clone(),
        ));
    }
    let drained = drain(&gateway, connections, &mut phase).await;
    announced.abort();
    drained
}

/// Waits for the running connections, and aborts those that are left at the end of the drain time.
async fn drain(
    gateway: &CurrentGateway,
    mut connections: JoinSet<()>,
    phase: &mut watch::Receiver<ListenerPhase>,
) -> DrainResult {
    let ended = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = ended => return DrainResult { cut: 0 },
        () = reached(phase, ListenerPhase::Cut) => {}
    }
    while connections.try_join_next().is_some() {}
    let cut = connections.len();
    gateway.current().lifecycle.abort.abort();
    let closing = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(CLOSE_TIMEOUT, closing).await.is_err() {
        connections.shutdown().await;
    }
    DrainResult { cut }
}

/// Accepts connections until another process does, or until the drain.
async fn accept(
    gateway: &Arc<CurrentGateway>,
    acceptor: &mut Acceptor,
    phase: &mut watch::Receiver<ListenerPhase>,
    connections: &mut JoinSet<()>,
) {
    let memory = Arc::clone(&gateway.current().edge.admission.memory);
    loop {
        // Under memory pressure new connections wait in the kernel's backlog: none is accepted only
        // to be refused.
        tokio::select! {
            () = memory.has_room() => {}
            () = reached(phase, ListenerPhase::HandedOver) => return,
        }
        let (stream, slot) = tokio::select! {
            accepted = acceptor.next() => accepted,
            () = memory.is_full() => continue,
            () = reached(phase, ListenerPhase::HandedOver) => return,
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(Arc::clone(gateway), stream, slot, phase.clone()));
    }
}

/// Fails readiness as soon as the listener is to get no more requests.
async fn announce(gateway: Arc<Gateway>, mut phase: watch::Receiver<ListenerPhase>) {
    reached(&mut phase, ListenerPhase::Leaving).await;
    gateway.lifecycle.leaving.store(true, Ordering::Relaxed);
}

/// Resolves when the phase is `at` or later; a dropped controller means the end.
async fn reached(phase: &mut watch::Receiver<ListenerPhase>, at: ListenerPhase) {
    drop(phase.wait_for(|phase| *phase >= at).await);
}

async fn connection(
    gateways: Arc<CurrentGateway>,
    stream: net::Stream,
    slot: ConnectionSlot,
    mut phase: watch::Receiver<ListenerPhase>,
) {
    let server = Arc::clone(&gateways.current().edge.admission.server);
    let (stream, exchange) = ClientStream::new(stream, slot, server.head_timeout, CLIENT_STALL);
    let leaving = phase.clone();
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(exchange.slot().peer());
        let (gateways, exchange, leaving) =
            (Arc::clone(&gateways), exchange.clone(), leaving.clone());
        // On the heap until the reply's head is known: hyper keeps the place of this future as long
        // as the connection.
        Box::pin(async move {
            let answering = exchange.begin().await;
            let gateway = gateways.current();
            let mut response = request::answer(gateway, request.map(RequestBody::from)).await;
            // The client's next request needs another connection.
            if *leaving.borrow() >= ListenerPhase::Leaving {
                response
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| in_progress(body, answering)))
        })
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(server.keep_alive)
        .half_close(server.half_close)
        .max_headers(MAX_HEADERS)
        .max_buf_size(READ_BUFFER);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        // The connection is idle: no request is lost.
        () = exchange.slot().must_close() => return,
        () = reached(&mut phase, ListenerPhase::Drain) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "client connection ended");
    }
}
