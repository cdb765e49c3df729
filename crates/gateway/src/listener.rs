//! The data listener: accepts connections, speaks HTTP/1 with hard limits, and drains.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{HeaderValue, header::CONNECTION};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::MissedTickBehavior,
};

use crate::{
    Gateway, InForce,
    client_stream::{AnsweringBody, ClientStream},
    memory::{self, ThisProcess},
    request,
};

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that still carried a request when the time was up, and were cut.
    pub cut: usize,
}

/// What the listener is told from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Accept and serve.
    #[default]
    Run,
    /// Not ready any more, for those who ask; still accept and serve, and end each connection with its next reply.
    Leaving,
    /// The same, while another process accepts in our place.
    HandedOver,
    /// Accept nothing new, let running requests end.
    Drain,
    /// Cut what still runs.
    Cut,
}

/// Largest head that is read at all, in bytes; the configured limit is checked on what was read, with a proper error.
const READ_BUFFER: usize = 64 * 1024;
/// How often the router is told that time has passed.
const TICK: Duration = Duration::from_secs(1);
/// What is cut has this long to tell its client so. A client that does not take it is not waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Pause after an accept that failed for want of descriptors: a busy loop would take the core from running streams.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `listeners` until `phase` says so, then lets running requests end until it says that they are to be cut.
pub async fn serve(gateway: Arc<InForce>, listeners: net::Listeners, phase: watch::Receiver<Phase>) -> Drained {
    // Beside the accepting, which stands still at the limit of connections. What ticks is shared by every gateway that is
    // ever in force.
    let ticking = ticking(gateway.now());
    let learning = learning(gateway.now());
    let listing = gateway.now();
    let remembering = Arc::clone(&gateway);
    tokio::select! {
        drained = accept_and_drain(gateway, listeners, phase) => drained,
        never = ticking => match never {},
        never = memory::watch(&remembering, ThisProcess) => match never {},
        never = learning => match never {},
        never = listing.keep_model_list() => match never {},
    }
}

async fn learning(gateway: Arc<Gateway>) -> Infallible {
    match &gateway.clusters {
        Some(clusters) => clusters.learning().await,
        None => std::future::pending().await,
    }
}

async fn ticking(gateway: Arc<Gateway>) -> Infallible {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                gateway.tick();
                gateway.see_off();
            }
            () = gateway.judge.changed() => {}
            () = gateway.desk.pace() => {}
        }
        gateway.judge.act();
    }
}

async fn accept_and_drain(
    gateway: Arc<InForce>,
    listeners: net::Listeners,
    mut phase: watch::Receiver<Phase>,
) -> Drained {
    let room = Arc::new(Semaphore::new(gateway.now().limits.max_connections));
    let memory = Arc::clone(&gateway.now().memory);
    let announced = tokio::spawn(announce(gateway.now(), phase.clone()));
    let mut connections = JoinSet::new();
    loop {
        // At the limit new connections wait in the kernel's backlog: nothing is accepted only to be refused.
        let permit = tokio::select! {
            permit = Arc::clone(&room).acquire_owned() => permit.ok(),
            () = reached(&mut phase, Phase::HandedOver) => break,
        };
        // Out of memory they wait there, too.
        tokio::select! {
            () = memory.has_room() => {}
            () = reached(&mut phase, Phase::HandedOver) => break,
        }
        let stream = tokio::select! {
            accepted = listeners.accept() => match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accept failed, pausing");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = memory.is_full() => continue,
            () = reached(&mut phase, Phase::HandedOver) => break,
        };
        while connections.try_join_next().is_some() {}
        let (gateway, phase) = (Arc::clone(&gateway), phase.clone());
        connections.spawn(async move {
            connection(gateway, stream, phase).await;
            drop(permit);
        });
    }
    drop(listeners);
    let ended = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = ended => {
            announced.abort();
            return Drained { cut: 0 };
        }
        () = reached(&mut phase, Phase::Cut) => {}
    }
    while connections.try_join_next().is_some() {}
    let cut = connections.len();
    announced.abort();
    gateway.now().cut.throw();
    let last_words = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_WORDS, last_words).await.is_err() {
        connections.shutdown().await;
    }
    Drained { cut }
}

/// Who asks whether we are ready is told as soon as we are not to get any more.
async fn announce(gateway: Arc<Gateway>, mut phase: watch::Receiver<Phase>) {
    reached(&mut phase, Phase::Leaving).await;
    gateway.leaving.store(true, Ordering::Relaxed);
}

/// Resolves when the phase is `at` or later; a controller that went away means the end.
async fn reached(phase: &mut watch::Receiver<Phase>, at: Phase) {
    drop(phase.wait_for(|phase| *phase >= at).await);
}

async fn connection(gateways: Arc<InForce>, stream: net::Stream, mut phase: watch::Receiver<Phase>) {
    let limits = gateways.now().limits;
    let (stream, exchange) = ClientStream::new(stream, limits.head_timeout, limits.client_stall);
    let leaving = phase.clone();
    let service = service_fn(|request: Request<Incoming>| {
        let gateway = gateways.now();
        let answering = exchange.begin();
        let leaving = leaving.clone();
        async move {
            let mut response = request::answer(gateway, request).await;
            // The client's next request is for somebody else.
            if *leaving.borrow() >= Phase::Leaving {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| AnsweringBody::new(body, answering)))
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.keep_alive)
        .half_close(limits.half_close)
        .max_headers(limits.max_headers)
        .max_buf_size(READ_BUFFER);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = reached(&mut phase, Phase::Drain) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "client connection ended");
    }
}
