//! The HTTP transport to the object store: over connections from `net`, to its endpoint only.
//!
//! An error status becomes an error without the body: its text is not for logs. An idle connection
//! may have ended in the meantime: a request that finds one is sent once more over a new
//! connection.
//!
//! **Invariant**: no answer takes more memory than the longest value, or a list of names.

use std::{io, path::Path, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Response, StatusCode, Uri, header::HOST, uri::Scheme};
use http_body_util::{BodyExt, Limited};
use hyper::{
    body::{Body, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use net::{Address, TrustRoots};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
        HttpResponse, HttpResponseBody, HttpService,
    },
};
use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::timeout};

use super::fault::TransportFault;
use crate::{CacheStartError, engine::CurrentSettings, hmac_envelope::FRAME};

/// Timeout of one connection, TLS handshake included.
const CONNECT: Duration = Duration::from_secs(3);
/// Maximum number of idle connections.
const MOST_IDLE: usize = 16;
/// Maximum length of any answer but a value: a list of a thousand names.
const LIST: usize = 1 << 20;

/// The endpoint, and its connections.
#[derive(Clone, Debug)]
pub(super) struct Transport(Arc<TransportInner>);

#[derive(Debug)]
struct TransportInner {
    endpoint: String,
    authority: HeaderValue,
    host: String,
    address: Address,
    trust: Option<TrustRoots>,
    /// Bound: [`MOST_IDLE`]; the most recently used one comes first.
    idle_connections: Mutex<Vec<S3Connection>>,
    current: Arc<CurrentSettings>,
}

#[derive(Debug)]
struct S3Connection {
    sender: http1::SendRequest<HttpRequestBody>,
    driver: JoinHandle<()>,
}

impl Drop for S3Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Transport {
    pub(super) fn new(
        endpoint: &str,
        tls_ca: Option<&Path>,
        in_force: Arc<CurrentSettings>,
    ) -> Result<Self, CacheStartError> {
        let unusable = |reason: String| CacheStartError::Unusable {
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
        // In the form of the signature: without the scheme's default port.
        let authority = if port == usual {
            host.to_owned()
        } else {
            format!("{host}:{port}")
        };
        let scheme = if encrypted { "https" } else { "http" };
        let trust_roots =
            || tls_ca.map_or_else(TrustRoots::system, TrustRoots::with_authorities_in);
        let trust =
            encrypted
                .then(trust_roots)
                .transpose()
                .map_err(|error| CacheStartError::Unusable {
                    key: "response_cache.l2.tls_ca",
                    reason: error.to_string(),
                })?;
        let bare = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Ok(Self(Arc::new(TransportInner {
            endpoint: format!("{scheme}://{authority}"),
            authority: HeaderValue::from_str(&authority).map_err(|_| expected())?,
            address: Address::Tcp {
                host: bare.clone(),
                port,
            },
            host: bare,
            trust,
            idle_connections: Mutex::default(),
            current: in_force,
        })))
    }

    /// Returns the endpoint in its canonical form.
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
    // The expansion of the trait's async macro.
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move { self.0.send(request).await.map_err(http_error) })
    }
}

impl TransportInner {
    /// Returns the whole answer, if it is a success or a 404.
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, TransportFault> {
        let request = self.addressed(request)?;
        let (connection, response) = self.exchange(request).await?;
        let status = response.status();
        if !status.is_success() && status != StatusCode::NOT_FOUND {
            return Err(TransportFault::Refused(status));
        }
        let most = self.most();
        let (head, body) = response.into_parts();
        if body.size_hint().lower() > most as u64 {
            return Err(TransportFault::Broken);
        }
        let body = Limited::new(body, most)
            .collect()
            .await
            .map_err(|_| TransportFault::Broken)?
            .to_bytes();
        self.recycle(connection);
        Ok(HttpResponse::from_parts(head, HttpResponseBody::from(body)))
    }

    /// Addresses the request to this endpoint, in the form that a server expects of a client.
    fn addressed(&self, mut request: HttpRequest) -> Result<HttpRequest, TransportFault> {
        let path = request.uri().path_and_query().cloned();
        let elsewhere = request
            .uri()
            .authority()
            .is_none_or(|it| it.as_str() != self.authority);
        if elsewhere {
            return Err(TransportFault::Connection(
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
    ) -> Result<(S3Connection, Response<Incoming>), TransportFault> {
        while let Some(mut connection) = self.take() {
            // An ended connection fails here, or on the write.
            if connection.sender.ready().await.is_err() {
                continue;
            }
            match connection.sender.send_request(request.clone()).await {
                Ok(response) => return Ok((connection, response)),
                Err(_) => break,
            }
        }
        let mut fresh = self.open().await?;
        let response = fresh
            .sender
            .send_request(request)
            .await
            .map_err(|_| TransportFault::Lost)?;
        Ok((fresh, response))
    }

    async fn open(&self) -> Result<S3Connection, TransportFault> {
        let opening = async {
            let stream = net::connect(&self.address, CONNECT).await?;
            match &self.trust {
                None => Ok(stream),
                Some(trust) => trust.encrypt(stream, &self.host).await.map_err(|error| {
                    io::Error::other(format!(
                        "the TLS handshake failed ({error}): the object store needs a certificate for {} by an authority \
                         that this machine or response_cache.l2.tls_ca trusts",
                        self.host
                    ))
                }),
            }
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("none within {CONNECT:?}"));
        let stream = timeout(CONNECT, opening)
            .await
            .unwrap_or_else(|_| Err(late()));
        let stream = stream.map_err(|error| TransportFault::Connection(error.to_string()))?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|_| TransportFault::Lost)?;
        let driver = runtime::spawn(async move {
            // The caller gets the error.
            let _ = driver.await;
        });
        Ok(S3Connection { sender, driver })
    }

    fn take(&self) -> Option<S3Connection> {
        self.idle_connections.lock().pop()
    }

    fn recycle(&self, connection: S3Connection) {
        let mut idle = self.idle_connections.lock();
        if idle.len() < MOST_IDLE && !connection.sender.is_closed() {
            idle.push(connection);
        }
    }

    /// Returns the maximum length of an answer, bytes.
    fn most(&self) -> usize {
        let settings = self.current.load();
        settings
            .max_response_size
            .max(settings.max_stream_buffer_size)
            .saturating_add(FRAME)
            .max(LIST)
    }
}

/// None of them is retried: the one useful retry was done above.
fn http_error(fault: TransportFault) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, fault)
}
