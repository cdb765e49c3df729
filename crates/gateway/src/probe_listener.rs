//! Liveness and readiness on a listener, a thread and a small runtime of their own.
//!
//! An orchestrator gets an answer here even when the request runtime is stalled, and learns it:
//! `/livez` is then 503 `stalled`, and 503 `failed` when clients can no longer connect. This
//! listener does not authenticate: the answers reveal nothing else.

use api::ProbeReply;
use std::{convert::Infallible, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{CONNECTION, CONTENT_TYPE},
};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kv_blocks::Moment;
use net::{
    Clock, ListenAddr, ListenError, Listener,
    server::{Acceptor, ClientStream, ConnectionSlot, in_progress},
};
use parking_lot::Mutex;
use supervision::Task;
use tokio::{
    sync::{oneshot, watch},
    task::{JoinHandle, JoinSet},
};

use crate::{Gateway, ListenerPhase, health};

/// Interval of the request runtime's heartbeat.
const BEAT: Duration = Duration::from_millis(500);
/// Time without a heartbeat after which the runtime counts as stalled: longer than any work on it,
/// shorter than an orchestrator's patience.
const STALLED: Duration = Duration::from_secs(5);
/// Time limit for the head of a request, and for an idle connection.
const HEAD: Duration = Duration::from_secs(5);
/// Most open connections. At the limit the longest idle one is closed for a new one.
const MOST_CONNECTIONS: usize = 64;

/// A running probe listener. It ends when stopped or dropped.
#[derive(Debug)]
pub struct ProbeListener {
    /// The bound address.
    pub address: ListenAddr,
    thread: Option<thread::JoinHandle<()>>,
    heartbeat_task: JoinHandle<Infallible>,
    /// Dropping it ends the thread.
    _stop: oneshot::Sender<Infallible>,
}

/// The reason why the probe listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ProbeListenerError {
    /// The address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The thread or its runtime cannot be created.
    #[error("the thread for probes could not be started ({0}): allow this process more threads")]
    Thread(#[from] std::io::Error),
}

/// The heartbeat of a runtime.
#[derive(Debug)]
struct RuntimeHeartbeat {
    last: Mutex<Moment>,
    clock: Clock,
    /// Time without a beat after which the runtime counts as stalled.
    limit: Duration,
}

impl RuntimeHeartbeat {
    fn new(clock: Clock, limit: Duration) -> Self {
        Self {
            last: Mutex::new(clock.now()),
            clock,
            limit,
        }
    }

    async fn beat(self: Arc<Self>) -> Infallible {
        let mut ticks = tokio::time::interval(BEAT);
        loop {
            ticks.tick().await;
            *self.last.lock() = self.clock.now();
        }
    }

    fn is_stalled(&self) -> bool {
        let last = *self.last.lock();
        self.clock.now().since(last) > self.limit
    }
}

impl ProbeListener {
    /// Answers probes at `address`. Must be called on the request runtime, whose heartbeat is
    /// watched from then on.
    pub async fn start(
        gateway: Arc<Gateway>,
        address: ListenAddr,
        phase: watch::Receiver<ListenerPhase>,
    ) -> Result<Self, ProbeListenerError> {
        let heartbeat = RuntimeHeartbeat::new(gateway.clock(), STALLED);
        let live = Arc::clone(&gateway);
        let ready = move || match gateway.failure() {
            None if *phase.borrow() != ListenerPhase::Run => health::draining(),
            _ => gateway.ready(),
        };
        Self::answering(address, heartbeat, move || live.live(), ready).await
    }

    async fn answering(
        address: ListenAddr,
        heartbeat: RuntimeHeartbeat,
        live: impl Fn() -> ProbeReply + Send + Sync + 'static,
        ready: impl Fn() -> ProbeReply + Send + Sync + 'static,
    ) -> Result<Self, ProbeListenerError> {
        let heartbeat = Arc::new(heartbeat);
        let (bound, listening) = oneshot::channel::<Result<ListenAddr, ProbeListenerError>>();
        let (stop, stopped) = oneshot::channel();
        let state = Arc::new(ProbeState {
            heartbeat: Arc::clone(&heartbeat),
            live: Box::new(live),
            ready: Box::new(ready),
        });
        let thread = runtime::spawn_thread("probes", move || {
            let runtime = match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
            {
                Ok(runtime) => runtime,
                Err(error) => return drop(bound.send(Err(error.into()))),
            };
            // Bound here: a socket belongs to the runtime on which it was made.
            runtime.block_on(async {
                match net::listen(&address).await {
                    Ok(listener) => {
                        let _ = bound.send(Ok(listener.address()));
                        tokio::select! {
                            never = serve(listener, state) => match never {},
                            // Nothing is ever sent: the sender is dropped.
                            _ = stopped => {}
                        }
                    }
                    Err(error) => drop(bound.send(Err(error.into()))),
                }
            });
        })?;
        let address = listening
            .await
            .map_err(|_| std::io::Error::other("it ended at once"))??;
        let heartbeat_task = runtime::spawn(heartbeat.beat());
        Ok(Self {
            address,
            thread: Some(thread),
            heartbeat_task,
            _stop: stop,
        })
    }

    /// Ends the listener and waits for its thread.
    pub async fn stop(mut self) {
        let thread = self.thread.take();
        drop(self);
        let joined = runtime::spawn_blocking(move || thread.map(thread::JoinHandle::join)).await;
        if !matches!(joined, Ok(Some(Ok(())))) {
            tracing::error!("the thread for probes ended with a panic");
        }
    }
}

impl Drop for ProbeListener {
    fn drop(&mut self) {
        self.heartbeat_task.abort();
    }
}

struct ProbeState {
    heartbeat: Arc<RuntimeHeartbeat>,
    live: Box<dyn Fn() -> ProbeReply + Send + Sync>,
    ready: Box<dyn Fn() -> ProbeReply + Send + Sync>,
}

async fn serve(listener: Listener, state: Arc<ProbeState>) -> Infallible {
    // Outside the accept loop: a panic there costs no connection.
    let mut acceptor = Acceptor::new(listener, MOST_CONNECTIONS);
    let mut connections = JoinSet::new();
    let mut task = Task::new("probe_accept");
    loop {
        if let Some(never) = task
            .attempt(accept(&mut acceptor, &state, &mut connections))
            .await
        {
            match never {}
        }
    }
}

async fn accept(
    acceptor: &mut Acceptor,
    state: &Arc<ProbeState>,
    connections: &mut JoinSet<()>,
) -> Infallible {
    loop {
        let (stream, slot) = acceptor.next().await;
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(stream, slot, Arc::clone(state)));
    }
}

async fn connection(stream: net::Stream, slot: ConnectionSlot, state: Arc<ProbeState>) {
    let (stream, exchange) = ClientStream::new(stream, slot, HEAD, HEAD);
    let service = service_fn(|request| {
        let (state, exchange) = (Arc::clone(&state), exchange.clone());
        async move {
            let (answering, framing) = exchange.begin().await;
            let reply = match framing {
                Ok(()) => state.answer(&request),
                Err(_) => refused_framing(),
            };
            Ok::<_, Infallible>(reply.map(|body| in_progress(body, answering)))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        ended = served => ended,
        // The connection is idle: no request is lost.
        () = exchange.slot().must_close() => return,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a prober's connection ended");
    }
}

impl ProbeState {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return reply(
                StatusCode::METHOD_NOT_ALLOWED,
                &health::failing("method_not_allowed", "probes are asked with GET"),
            );
        }
        let probe = match request.uri().path() {
            // A stalled runtime fails both probes, before any other check.
            "/livez" | "/readyz" if self.heartbeat.is_stalled() => {
                health::failing("stalled", "the runtime that serves requests stands still")
            }
            "/livez" => (self.live)(),
            "/readyz" => (self.ready)(),
            _ => {
                let there =
                    health::failing("unknown_route", "this listener answers /livez and /readyz");
                return reply(StatusCode::NOT_FOUND, &there);
            }
        };
        let status = if probe.reasons.is_empty() {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        reply(status, &probe)
    }
}

/// The reply to a request of which another server could see another end.
fn refused_framing() -> Response<Full<Bytes>> {
    let probe = health::failing("invalid_request", "the end of the request is ambiguous");
    let mut reply = reply(StatusCode::BAD_REQUEST, &probe);
    let close = HeaderValue::from_static("close");
    reply.headers_mut().insert(CONNECTION, close);
    reply
}

fn reply(status: StatusCode, probe: &ProbeReply) -> Response<Full<Bytes>> {
    // Serializing two strings cannot fail.
    let body = serde_json::to_vec(probe).unwrap_or_default();
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

    use super::*;

    fn get(address: &ListenAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address.to_string()).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    async fn answering(
        stalled: Duration,
        ready: impl Fn() -> ProbeReply + Send + Sync + 'static,
    ) -> ProbeListener {
        let heartbeat = RuntimeHeartbeat::new(Clock::system(), stalled);
        let address = ListenAddr::tcp("127.0.0.1", 0);
        ProbeListener::answering(address, heartbeat, health::healthy, ready)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_stalled_runtime_is_reported_from_outside_it() {
        let limit = 2 * BEAT;
        let probes = answering(limit, health::healthy).await;
        let live = async || {
            let address = probes.address.clone();
            let live = tokio::task::spawn_blocking(move || get(&address, "/livez"));
            live.await.unwrap().starts_with("HTTP/1.1 200")
        };
        // A machine that stands still makes the runtime look stalled for a moment.
        let mut tries = 0;
        while !live().await {
            tries += 1;
            assert!(tries < 1_000, "it is never alive");
            tokio::time::sleep(BEAT / 10).await;
        }
        // The only thread of this runtime blocks, so nothing on it runs.
        thread::sleep(limit + BEAT / 10);
        for path in ["/livez", "/readyz"] {
            let reply = get(&probes.address, path);
            assert!(
                reply.starts_with("HTTP/1.1 503") && reply.contains("\"status\":\"stalled\""),
                "{reply}"
            );
        }
        probes.stop().await;
    }

    #[tokio::test]
    async fn readiness_is_the_routers_and_other_paths_are_not_found() {
        let probes = answering(STALLED, || {
            health::failing("unavailable", "no usable worker")
        })
        .await;
        let address = probes.address.clone();
        let get = |path: &'static str| {
            let address = address.clone();
            async move {
                tokio::task::spawn_blocking(move || self::get(&address, path))
                    .await
                    .unwrap()
            }
        };
        assert!(get("/livez").await.starts_with("HTTP/1.1 200"));
        let ready = get("/readyz").await;
        assert!(
            ready.starts_with("HTTP/1.1 503") && ready.contains("no usable worker"),
            "{ready}"
        );
        assert!(get("/v1/models").await.starts_with("HTTP/1.1 404"));
        probes.stop().await;
        assert!(TcpStream::connect(address.to_string()).is_err());
    }
}
