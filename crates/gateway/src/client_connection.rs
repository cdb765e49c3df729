//! One connection of a client: HTTP/1, also what follows an upgrade, or HTTP/2, each with hard limits.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use config::ServerSection;
use http::{
    HeaderValue, Request, Response,
    header::{CONNECTION, HOST},
};
use hyper::{
    body::Incoming,
    rt::Executor,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use net::server::{
    ClientStream, ConnectionSlot, ExchangeGuard, ExchangeTracker, FramingError, HttpVersion,
    ReplyWatch, in_progress,
};
use parking_lot::Mutex;
use proxy::RequestBody;
use tokio::{sync::watch, time::sleep};

use crate::{
    CurrentGateway, ListenerPhase,
    listener::reached,
    request::{
        self,
        accept::MAX_HEADERS,
        reply_body::{GuardedBody, GuardedConversation},
    },
};

/// Largest head that is read at all, in bytes; the configured limit is checked afterwards, with a
/// proper error.
const READ_BUFFER: usize = 64 * 1024;
/// Time without progress after which a client that does not read its reply is disconnected.
const CLIENT_STALL: Duration = Duration::from_secs(300);

/// Requests that an HTTP/2 connection runs at once.
const MAX_STREAMS: u32 = 100;
/// Bytes of one body, and of all bodies of a connection, that an HTTP/2 client may send before the
/// requests read them.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of a reply that wait for the window of an HTTP/2 client.
const SEND_BUFFER: usize = 64 * 1024;
/// Streams that the client reset before they were accepted, at once, and streams that were reset
/// for an error of the client, in the whole life of a connection; beyond it the connection ends with
/// ENHANCE_YOUR_CALM.
const MAX_PENDING_RESETS: usize = 20;
const MAX_ERROR_RESETS: usize = 1024;
/// Interval and time limit of pings, which find clients that are gone.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which a client may take the last bytes of an HTTP/2 connection that ends.
const GOODBYE: Duration = Duration::from_secs(5);

/// What the requests of a connection need.
#[derive(Clone)]
struct ClientService {
    gateways: Arc<CurrentGateway>,
    exchange: ExchangeTracker,
}

/// Serves the requests of a connection until it ends, or until `phase` ends it.
pub(crate) async fn serve(
    gateways: Arc<CurrentGateway>,
    stream: net::Stream,
    slot: ConnectionSlot,
    mut phase: watch::Receiver<ListenerPhase>,
) {
    let server = Arc::clone(&gateways.current().edge.admission.server);
    let (mut stream, exchange) = ClientStream::new(stream, slot, server.head_timeout, CLIENT_STALL);
    let version = if server.http2 {
        tokio::select! {
            version = stream.http_version() => version,
            // The connection is idle: no request is lost.
            () = exchange.slot().must_close() => return,
            () = reached(&mut phase, ListenerPhase::Drain) => return,
        }
    } else {
        Ok(HttpVersion::Http1)
    };
    let service = ClientService { gateways, exchange };
    let result = match version {
        Ok(HttpVersion::Http1) => serve_http1(&server, stream, service, phase).await,
        // On the heap, so that connections of the other version stay small.
        Ok(HttpVersion::Http2) => Box::pin(serve_http2(&server, stream, service, phase)).await,
        Err(error) => {
            tracing::debug!(%error, "client connection ended before its first request");
            return;
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "client connection ended");
    }
}

async fn serve_http1(
    server: &ServerSection,
    stream: ClientStream,
    client: ClientService,
    mut phase: watch::Receiver<ListenerPhase>,
) -> hyper::Result<()> {
    let (leaving, exchange) = (phase.clone(), client.exchange.clone());
    // What follows the last request, where that leaves HTTP: until its end the request is in
    // progress.
    let upgraded: Mutex<Option<(GuardedConversation, ExchangeGuard)>> = Mutex::default();
    let service = service_fn(|request| {
        let (client, leaving, upgraded) = (client.clone(), leaving.clone(), &upgraded);
        // On the heap until the reply's head is known: hyper keeps the place of this future as long
        // as the connection.
        Box::pin(async move {
            let (answering, framing) = client.exchange.begin().await;
            let mut response = client.answer(request, framing).await;
            let answering = match response.body_mut().take_conversation() {
                Some(conversation) => {
                    client.exchange.record_upgrade();
                    *upgraded.lock() = Some((conversation, answering));
                    None
                }
                None => Some(answering),
            };
            // The client's next request needs another connection.
            if answering.is_some() && *leaving.borrow() >= ListenerPhase::Leaving {
                response
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| in_progress(body, answering)))
        })
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(server.keep_alive)
        .half_close(server.half_close)
        .max_headers(MAX_HEADERS)
        .max_buf_size(READ_BUFFER);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let result = {
        let mut connection = pin!(connection.with_upgrades());
        tokio::select! {
            result = connection.as_mut() => result,
            // The connection is idle: no request is lost.
            () = exchange.slot().must_close() => return Ok(()),
            () = reached(&mut phase, ListenerPhase::Drain) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    let upgraded = upgraded.lock().take();
    if let Some((conversation, answering)) = upgraded {
        // On the heap, as few connections ever carry one and all have room for it.
        Box::pin(conversation.run()).await;
        drop(answering);
    }
    result
}

async fn serve_http2(
    server: &ServerSection,
    stream: ClientStream,
    client: ClientService,
    mut phase: watch::Receiver<ListenerPhase>,
) -> hyper::Result<()> {
    let exchange = client.exchange.clone();
    let watch = Arc::new(ReplyWatch::new(CLIENT_STALL));
    let watching = Arc::clone(&watch);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (client, watch) = (client.clone(), Arc::clone(&watching));
        async move {
            let (answering, framing) = client.exchange.begin().await;
            set_host(&mut request);
            let response = client.answer(request, framing).await;
            Ok::<_, Infallible>(response.map(|body| watch.watch(in_progress(body, answering))))
        }
    });
    let mut builder = http2::Builder::new(StreamTasks);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(u32::try_from(READ_BUFFER).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // A connection that begins while the listener leaves gets its first reply.
    let leaving = async {
        reached(&mut phase, ListenerPhase::Leaving).await;
        exchange.has_begun().await;
    };
    tokio::select! {
        result = connection.as_mut() => return result,
        // No request runs: those that wait for the share of their address yield too.
        () = exchange.slot().must_close() => return Ok(()),
        () = exchange.idle_for(server.keep_alive) => {}
        () = leaving => {}
        () = watch.run() => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        result = connection => result,
        () = exchange.slot().must_close() => Ok(()),
        () = async { sleep(GOODBYE).await; exchange.idle_for(GOODBYE).await } => Ok(()),
        () = watch.run() => Ok(()),
    }
}

impl ClientService {
    async fn answer(
        &self,
        request: Request<Incoming>,
        framing: Result<(), FramingError>,
    ) -> Response<GuardedBody> {
        if let Err(error) = framing {
            return request::refuse_framing(&self.gateways.current(), &request, error);
        }
        let (request, slot) = (request.map(RequestBody::from), self.exchange.slot());
        let sender = request::RequestSender {
            share: slot.peer(),
            address: slot.address(),
        };
        request::answer(self.gateways.current(), request, sender).await
    }
}

/// Gives a request of HTTP/2 the `Host` that HTTP/1 has, so that one check holds for both.
fn set_host(request: &mut Request<Incoming>) {
    let authority = request.uri().authority();
    let host = authority.and_then(|name| HeaderValue::from_str(name.as_str()).ok());
    if let Some(host) = host
        && !request.headers().contains_key(HOST)
    {
        request.headers_mut().insert(HOST, host);
    }
}

/// Runs the requests of a connection; each ends with the connection.
#[derive(Clone, Copy, Debug)]
struct StreamTasks;

impl<F> Executor<F> for StreamTasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, request: F) {
        drop(runtime::spawn(request));
    }
}
