//! One connection of a stream: the request, then its messages one by one.

use std::{future::Future, io, pin::Pin, time::Duration};

use dialect::{SseEvent, SseSplitter};
use futures_util::{SinkExt, StreamExt};
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST},
};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use net::{Destinations, Stream, TrustError, TrustRoots};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{Message, client::IntoClientRequest, protocol::WebSocketConfig},
};

use super::{EventTransport, SseEndpoint};

/// Time limit for name, connection, encryption and the head of the reply together.
const OPENING: Duration = Duration::from_secs(10);
/// Largest head of a reply, bytes.
const HEAD_BYTES: usize = 64 * 1024;
/// Longest event; longer ones are dropped.
pub(crate) const EVENT_BYTES: usize = dialect::MAX_EVENT_BYTES;
/// Interval of WebSocket pings.
const PING: Duration = Duration::from_secs(30);

/// Reasons for a failed or ended stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error(
        "{endpoint} cannot be reached ({source}): check that the sender of events runs and listens there"
    )]
    Unreachable { endpoint: String, source: io::Error },
    #[error("{endpoint} did not answer within {limit:?}")]
    Slow { endpoint: String, limit: Duration },
    #[error(
        "{endpoint} could not prove who it is ({source}): check its certificate, or give its authority's"
    )]
    Tls { endpoint: String, source: io::Error },
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(
        "{endpoint} answered with status {status}: expected {expected}; check the path of the endpoint"
    )]
    Status {
        endpoint: String,
        status: u16,
        expected: &'static str,
    },
    #[error(
        "{endpoint} answered with content-type {found:?}: expected text/event-stream; check the path of the endpoint"
    )]
    NotEvents { endpoint: String, found: String },
    #[error("{endpoint}: {reason}")]
    Broken { endpoint: String, reason: String },
    #[error("{endpoint} ended the stream")]
    Ended { endpoint: String },
    #[error("{endpoint} sent nothing for {limit:?}, not even a comment: it is asked anew")]
    Silent { endpoint: String, limit: Duration },
}

/// Address and settings of the request.
#[derive(Clone, Debug)]
pub(crate) struct SseDialer {
    pub(crate) endpoint: SseEndpoint,
    pub(crate) authorization: Option<HeaderValue>,
    pub(crate) trust: Option<TrustRoots>,
    pub(crate) destinations: Destinations,
}

/// A received event.
#[derive(Debug)]
pub(crate) enum ReceivedEvent<'a> {
    /// A message with its event name.
    Message {
        name: Option<&'a [u8]>,
        data: &'a [u8],
    },
    /// An event longer than [`EVENT_BYTES`], dropped.
    Oversized,
    /// Data that cannot be an event, dropped.
    NoText,
}

/// An open stream.
pub(crate) struct EventConnection {
    endpoint: SseEndpoint,
    kind: ConnectionKind,
}

enum ConnectionKind {
    Sse(Box<SseEvents>),
    WebSocket(Box<WebSocketEvents>),
}

struct SseEvents {
    body: Incoming,
    /// The I/O of the HTTP connection, polled here and not in a task: dropping this closes the
    /// socket.
    driver: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    splitter: SseSplitter,
}

struct WebSocketEvents {
    stream: WebSocketStream<Stream>,
    ping: Interval,
}

impl SseDialer {
    /// Opens the stream.
    pub(crate) async fn open(&self) -> Result<EventConnection, ConnectionError> {
        let slow = |_| ConnectionError::Slow {
            endpoint: self.endpoint.to_string(),
            limit: OPENING,
        };
        let kind = tokio::time::timeout(OPENING, self.send_request())
            .await
            .map_err(slow)??;
        Ok(EventConnection {
            endpoint: self.endpoint.clone(),
            kind,
        })
    }

    async fn send_request(&self) -> Result<ConnectionKind, ConnectionError> {
        let stream = self.stream().await?;
        match self.endpoint.carrier() {
            EventTransport::Sse => self.events(stream).await,
            EventTransport::WebSocket => self.socket(stream).await,
        }
    }

    async fn stream(&self) -> Result<Stream, ConnectionError> {
        let endpoint = || self.endpoint.to_string();
        let address = self.endpoint.address();
        let unreachable = |source| ConnectionError::Unreachable {
            endpoint: endpoint(),
            source,
        };
        let stream = self
            .destinations
            .connect(&address, OPENING)
            .await
            .map_err(unreachable)?;
        if !self.endpoint.is_tls() {
            return Ok(stream);
        }
        let trust = match &self.trust {
            Some(trust) => trust.clone(),
            None => TrustRoots::system_now().await?,
        };
        let encrypted = trust.encrypt(stream, self.endpoint.host()).await;
        encrypted.map_err(|source| ConnectionError::Tls {
            endpoint: endpoint(),
            source,
        })
    }

    async fn events(&self, stream: Stream) -> Result<ConnectionKind, ConnectionError> {
        let mut request = Request::get(self.endpoint.target())
            .header(HOST, self.endpoint.authority())
            .header(ACCEPT, "text/event-stream")
            .header(ACCEPT_ENCODING, "identity")
            .header(CACHE_CONTROL, "no-cache")
            .body(Empty::<bytes::Bytes>::new())
            .map_err(|error| self.broken(&error))?;
        if let Some(authorization) = &self.authorization {
            request
                .headers_mut()
                .insert(AUTHORIZATION, authorization.clone());
        }
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(&error))?;
        let mut driver: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            // An error of the connection also reaches the reply.
            let _ = connection.await;
        });
        let mut driving = true;
        let mut reply = std::pin::pin!(sender.send_request(request));
        let reply = loop {
            tokio::select! {
                biased;
                reply = &mut reply => break reply.map_err(|error| self.broken(&error))?,
                () = &mut driver, if driving => driving = false,
            }
        };
        let body = self.checked(reply)?;
        Ok(ConnectionKind::Sse(Box::new(SseEvents {
            body,
            driver: driving.then_some(driver),
            splitter: SseSplitter::new(),
        })))
    }

    fn checked(&self, reply: Response<Incoming>) -> Result<Incoming, ConnectionError> {
        if reply.status() != StatusCode::OK {
            let (status, expected) = (reply.status().as_u16(), "200 and a stream of events");
            return Err(ConnectionError::Status {
                endpoint: self.endpoint.to_string(),
                status,
                expected,
            });
        }
        let found = reply
            .headers()
            .get(CONTENT_TYPE)
            .map(HeaderValue::as_bytes)
            .unwrap_or_default();
        let found = String::from_utf8_lossy(found);
        let media = found.split(';').next().unwrap_or_default().trim();
        if !media.eq_ignore_ascii_case("text/event-stream") {
            let found = found.chars().take(80).collect();
            return Err(ConnectionError::NotEvents {
                endpoint: self.endpoint.to_string(),
                found,
            });
        }
        Ok(reply.into_body())
    }

    async fn socket(&self, stream: Stream) -> Result<ConnectionKind, ConnectionError> {
        let url = format!(
            "ws://{}{}",
            self.endpoint.authority(),
            self.endpoint.target()
        );
        let mut request = url
            .into_client_request()
            .map_err(|error| self.broken(&error))?;
        if let Some(authorization) = &self.authorization {
            request
                .headers_mut()
                .insert(AUTHORIZATION, authorization.clone());
        }
        let limits = WebSocketConfig::default()
            .read_buffer_size(16 * 1024)
            .write_buffer_size(0)
            .max_write_buffer_size(HEAD_BYTES)
            .max_message_size(Some(EVENT_BYTES))
            .max_frame_size(Some(EVENT_BYTES));
        let (stream, _) = client_async_with_config(request, stream, Some(limits))
            .await
            .map_err(|error| self.refused(&error))?;
        let mut ping = tokio::time::interval(PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        Ok(ConnectionKind::WebSocket(Box::new(WebSocketEvents {
            stream,
            ping,
        })))
    }

    fn refused(&self, error: &tokio_tungstenite::tungstenite::Error) -> ConnectionError {
        use tokio_tungstenite::tungstenite::Error;
        match error {
            Error::Http(reply) => {
                let (status, expected) = (reply.status().as_u16(), "101 and a web socket");
                ConnectionError::Status {
                    endpoint: self.endpoint.to_string(),
                    status,
                    expected,
                }
            }
            other => self.broken(other),
        }
    }

    fn broken(&self, error: &dyn std::error::Error) -> ConnectionError {
        ConnectionError::Broken {
            endpoint: self.endpoint.to_string(),
            reason: error.to_string(),
        }
    }
}

impl EventConnection {
    /// Reads the next bytes and passes on each message that they complete, possibly none.
    /// Cancel-safe.
    pub(crate) async fn next(
        &mut self,
        on_message: &mut impl FnMut(ReceivedEvent<'_>),
    ) -> Result<(), ConnectionError> {
        let limit = self.patience();
        let read = async {
            match &mut self.kind {
                ConnectionKind::Sse(events) => events.next(on_message).await,
                ConnectionKind::WebSocket(socket) => socket.next(on_message).await,
            }
        };
        let endpoint = || self.endpoint.to_string();
        match tokio::time::timeout(limit, read).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(ConnectionError::Ended {
                endpoint: endpoint(),
            }),
            Ok(Err(reason)) => Err(ConnectionError::Broken {
                endpoint: endpoint(),
                reason,
            }),
            Err(_) => Err(ConnectionError::Silent {
                endpoint: endpoint(),
                limit,
            }),
        }
    }

    /// Returns the longest allowed silence. A WebSocket answers pings; event streams only usually
    /// send comments, so they may stay silent longer.
    fn patience(&self) -> Duration {
        match self.kind {
            ConnectionKind::Sse(_) => Duration::from_secs(300),
            ConnectionKind::WebSocket(_) => 3 * PING,
        }
    }
}

impl SseEvents {
    /// Reads on; `false`: the stream is over. An incomplete message at the end is discarded.
    async fn next(
        &mut self,
        on_message: &mut impl FnMut(ReceivedEvent<'_>),
    ) -> Result<bool, String> {
        let frame = loop {
            let Some(driver) = &mut self.driver else {
                break self.body.frame().await;
            };
            tokio::select! {
                biased;
                frame = self.body.frame() => break frame,
                () = driver => self.driver = None,
            }
        };
        let Some(frame) = frame else { return Ok(false) };
        let frame = frame.map_err(|error| format!("the stream broke off ({error})"))?;
        if let Some(bytes) = frame.data_ref() {
            self.splitter.push(bytes, |event| {
                on_message(match &event {
                    SseEvent::Data { name, data } => ReceivedEvent::Message {
                        name: name.as_deref(),
                        data,
                    },
                    SseEvent::Oversized => ReceivedEvent::Oversized,
                });
            });
        }
        Ok(true)
    }
}

impl WebSocketEvents {
    /// Reads on; `false`: the stream is over.
    async fn next(
        &mut self,
        on_message: &mut impl FnMut(ReceivedEvent<'_>),
    ) -> Result<bool, String> {
        let broken = |error: tokio_tungstenite::tungstenite::Error| {
            format!(
                "the web socket broke off ({error}); a message may have {EVENT_BYTES} bytes at most"
            )
        };
        let message = loop {
            tokio::select! {
                message = self.stream.next() => break message,
                _ = self.ping.tick() => self.stream.send(Message::Ping(bytes::Bytes::new())).await.map_err(broken)?,
            }
        };
        match message.transpose().map_err(broken)? {
            Some(Message::Text(text)) => on_message(ReceivedEvent::Message {
                name: None,
                data: text.as_bytes(),
            }),
            Some(Message::Binary(_)) => on_message(ReceivedEvent::NoText),
            Some(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
            Some(Message::Close(_)) | None => return Ok(false),
        }
        Ok(true)
    }
}
