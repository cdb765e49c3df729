//! How requests reach the object store: over connections that `net` opens, to its endpoint and nowhere else.
//!
//! An answer that is no success is an error without its body: what it quotes is nobody's. A connection that was kept may have
//! ended in the meantime: a request that found it so is sent once more over a new one.
//!
//! **Invariant**: no answer takes more memory than the longest value does, or a list of names.

use std::{io, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Response, StatusCode, Uri, header::HOST, uri::Scheme};
use http_body_util::{BodyExt, Limited};
use hyper::{
    body::{Body, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use net::{Address, Trust};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
        HttpResponse, HttpResponseBody, HttpService,
    },
};
use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::timeout};

use super::fault::Mishap;
use crate::{StartError, engine::InForce, seal::FRAME};

/// Time for one connection, encryption included.
const CONNECT: Duration = Duration::from_secs(3);
/// Connections kept for the next request.
const KEPT: usize = 16;
/// Longest answer to anything but a look for a value: a list of a thousand names.
const LIST: usize = 1 << 20;

/// The endpoint, and the connections to it.
#[derive(Clone, Debug)]
pub(super) struct Transport(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    endpoint: String,
    authority: HeaderValue,
    host: String,
    address: Address,
    trust: Option<Trust>,
    /// Bound: [`KEPT`]; the last one that was used comes first.
    kept: Mutex<Vec<Connection>>,
    in_force: Arc<InForce>,
}

#[derive(Debug)]
struct Connection {
    sender: http1::SendRequest<HttpRequestBody>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Transport {
    pub(super) fn new(endpoint: &str, in_force: Arc<InForce>) -> Result<Self, StartError> {
        let unusable = |reason: String| StartError::Unusable {
            key: "response_cache.l2.endpoint",
            reason,
        };
        let expected = || {
            unusable(
                "not a URL such as https://s3.us-east-1.amazonaws.com or http://minio:9000"
                    .to_owned(),
            )
        };
        let uri: Uri = endpoint
            .trim_end_matches('/')
            .parse()
            .map_err(|_| expected())?;
        let encrypted = uri.scheme() == Some(&Scheme::HTTPS);
        let (host, named) = (
            uri.host().ok_or_else(expected)?,
            uri.authority().ok_or_else(expected)?,
        );
        if named.as_str().contains('@') || uri.query().is_some() || uri.path().len() > 1 {
            return Err(expected());
        }
        let usual = if encrypted { 443 } else { 80 };
        let port = uri.port_u16().unwrap_or(usual);
        // As requests are signed for: without the scheme's own port.
        let authority = if port == usual {
            host.to_owned()
        } else {
            format!("{host}:{port}")
        };
        let scheme = if encrypted { "https" } else { "http" };
        let trust = encrypted
            .then(Trust::system)
            .transpose()
            .map_err(|error| unusable(error.to_string()))?;
        let bare = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self(Arc::new(Inner {
            endpoint: format!("{scheme}://{authority}"),
            authority: HeaderValue::from_str(&authority).map_err(|_| expected())?,
            address: Address::Tcp {
                host: bare.clone(),
                port,
            },
            host: bare,
            trust,
            kept: Mutex::default(),
            in_force,
        })))
    }

    /// The endpoint in its usual spelling.
    pub(super) fn endpoint(&self) -> &str {
        &self.0.endpoint
    }
}

impl HttpConnector for Transport {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Transport {
    // What the trait's macro makes of an async function.
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move { self.0.ask(request).await.map_err(said) })
    }
}

impl Inner {
    /// The whole answer, if it is a success or says that there is no such thing.
    async fn ask(&self, request: HttpRequest) -> Result<HttpResponse, Mishap> {
        let request = self.addressed(request)?;
        let (connection, response) = self.exchange(request).await?;
        let status = response.status();
        if !status.is_success() && status != StatusCode::NOT_FOUND {
            return Err(Mishap::Refused(status));
        }
        let most = self.most();
        let (head, body) = response.into_parts();
        if body.size_hint().lower() > most as u64 {
            return Err(Mishap::Broken);
        }
        let body = Limited::new(body, most)
            .collect()
            .await
            .map_err(|_| Mishap::Broken)?
            .to_bytes();
        self.keep(connection);
        Ok(HttpResponse::from_parts(head, HttpResponseBody::from(body)))
    }

    /// For this endpoint, in the form that a server expects of a client.
    fn addressed(&self, mut request: HttpRequest) -> Result<HttpRequest, Mishap> {
        let path = request.uri().path_and_query().cloned();
        let elsewhere = request
            .uri()
            .authority()
            .is_none_or(|it| it.as_str() != self.authority);
        if elsewhere {
            return Err(Mishap::Connection(
                "the request is for somewhere else".to_owned(),
            ));
        }
        *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
        request.headers_mut().insert(HOST, self.authority.clone());
        Ok(request)
    }

    async fn exchange(
        &self,
        request: HttpRequest,
    ) -> Result<(Connection, Response<Incoming>), Mishap> {
        while let Some(mut kept) = self.take() {
            // One that has ended meanwhile says so here, or when it is written to.
            if kept.sender.ready().await.is_err() {
                continue;
            }
            match kept.sender.send_request(request.clone()).await {
                Ok(response) => return Ok((kept, response)),
                Err(_) => break,
            }
        }
        let mut fresh = self.open().await?;
        let response = fresh
            .sender
            .send_request(request)
            .await
            .map_err(|_| Mishap::Lost)?;
        Ok((fresh, response))
    }

    async fn open(&self) -> Result<Connection, Mishap> {
        let opening = async {
            let stream = net::connect(&self.address, CONNECT).await?;
            match &self.trust {
                None => Ok(stream),
                Some(trust) => trust.encrypt(stream, &self.host).await,
            }
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("none within {CONNECT:?}"));
        let stream = timeout(CONNECT, opening)
            .await
            .unwrap_or_else(|_| Err(late()));
        let stream = stream.map_err(|error| Mishap::Connection(error.to_string()))?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|_| Mishap::Lost)?;
        let driver = tokio::spawn(async move {
            // Whoever asks is told what happened.
            let _ = driver.await;
        });
        Ok(Connection { sender, driver })
    }

    fn take(&self) -> Option<Connection> {
        self.kept.lock().pop()
    }

    fn keep(&self, connection: Connection) {
        let mut kept = self.kept.lock();
        if kept.len() < KEPT && !connection.sender.is_closed() {
            kept.push(connection);
        }
    }

    /// Longest answer, bytes.
    fn most(&self) -> usize {
        let settings = self.in_force.load();
        settings
            .max_response_size
            .max(settings.max_stream_buffer_size)
            .saturating_add(FRAME)
            .max(LIST)
    }
}

/// None of them is tried again: what can be done about one was done above.
fn said(mishap: Mishap) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, mishap)
}
