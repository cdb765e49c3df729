//! One query of the router to a server, beside client requests: a JSON body, and a bounded answer.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use kv_blocks::WorkerId;
use net::WorkerUrl;

use crate::{OutgoingRequest, SendFailure, Upstream, headers};

/// The query, and its worker.
#[derive(Debug)]
pub struct JsonQuery<'a, C> {
    /// The worker, whose idle connections may be used.
    pub worker: WorkerId,
    /// Its address.
    pub url: &'a WorkerUrl,
    /// Header fields that authorize the router at the worker.
    pub credentials: C,
    /// Path below the worker's base URL.
    pub path: &'static str,
    /// The JSON body.
    pub body: Bytes,
    /// Most bytes of an answer; a longer one is invalid.
    pub most_bytes: usize,
    /// Time limit to open a connection.
    pub connect_timeout: Duration,
}

/// A complete answer.
#[derive(Debug)]
pub struct JsonReply {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Bytes,
}

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryError {
    /// No connection.
    Unreachable,
    /// The connection ended before an answer began. The worker may have closed an idle one.
    Lost,
    /// The answer is invalid or too long.
    Broken,
}

/// Sends the query. Dropping the future closes the connection.
///
/// # Errors
/// There is no complete answer.
pub async fn send_query<C>(
    upstream: &dyn Upstream,
    query: JsonQuery<'_, C>,
) -> Result<JsonReply, QueryError>
where
    C: IntoIterator<Item = (HeaderName, HeaderValue)>,
{
    let JsonQuery {
        worker,
        url,
        credentials,
        path,
        body,
        most_bytes,
        connect_timeout,
    } = query;
    let outgoing = OutgoingRequest {
        worker,
        url,
        request: post(url, credentials, path, body),
        connect_timeout,
    };
    let mut reply = upstream
        .send(outgoing)
        .await
        .map_err(|failure| match failure {
            SendFailure::NotSent(_) => QueryError::Unreachable,
            SendFailure::NoHead => QueryError::Lost,
            SendFailure::Protocol => QueryError::Broken,
        })?;
    if headers::has_conflicting_lengths(&reply.head.headers) {
        return Err(QueryError::Broken);
    }
    let body = reply.body.read_to_end(most_bytes).await;
    Ok(JsonReply {
        status: reply.head.status.as_u16(),
        body: body.map_err(|_| QueryError::Broken)?,
    })
}

fn post(
    url: &WorkerUrl,
    credentials: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    path: &str,
    body: Bytes,
) -> Request<Bytes> {
    let host =
        HeaderValue::try_from(url.authority()).unwrap_or(HeaderValue::from_static("localhost"));
    let mut fields = headers::upstream_head(&HeaderMap::new(), host, credentials);
    fields.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    fields.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url
        .path(path)
        .parse()
        .unwrap_or_else(|_| Uri::from_static("/"));
    *request.headers_mut() = fields;
    request
}
