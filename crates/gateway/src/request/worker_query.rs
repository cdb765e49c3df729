//! One query of the router to a worker, beside client requests: a JSON body, and a bounded answer.

use bytes::{Bytes, BytesMut};
use fleet::WorkerView;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use http_body_util::Full;
use net::Clock;

use super::{dispatch::next_data, headers};
use crate::upstream::{ConnectionPools, OutgoingRequest, SendFailure, UpstreamReply};

/// The query, and its worker.
#[derive(Debug)]
pub(crate) struct WorkerQuery<'a> {
    pub(crate) worker: &'a WorkerView,
    pub(crate) path: &'static str,
    pub(crate) body: Bytes,
    /// Most bytes of an answer; a longer one is invalid.
    pub(crate) most_bytes: usize,
    pub(crate) connect_timeout: std::time::Duration,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct WorkerReply {
    pub(crate) status: u16,
    pub(crate) body: BytesMut,
}

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerQueryError {
    /// No connection.
    Unreachable,
    /// The connection ended before an answer began. The worker may have closed an idle one.
    Lost,
    /// The answer is invalid or too long.
    Broken,
}

/// Sends the query. Dropping the future closes the connection.
pub(crate) async fn query_worker(
    pools: &ConnectionPools,
    clock: Clock,
    question: WorkerQuery<'_>,
) -> Result<WorkerReply, WorkerQueryError> {
    let WorkerQuery {
        worker,
        path,
        body,
        most_bytes,
        connect_timeout,
    } = question;
    let request = request(worker, path, body);
    let outgoing = OutgoingRequest {
        worker: worker.id,
        url: &worker.url,
        request,
        connect_timeout,
    };
    let UpstreamReply {
        response,
        connection,
    } = pools
        .send(outgoing, &clock)
        .await
        .map_err(|failure| match failure {
            SendFailure::NotSent(_) => WorkerQueryError::Unreachable,
            SendFailure::NoHead => WorkerQueryError::Lost,
            SendFailure::Protocol => WorkerQueryError::Broken,
        })?;
    let (head, mut incoming) = response.into_parts();
    if headers::has_conflicting_lengths(&head.headers) {
        return Err(WorkerQueryError::Broken);
    }
    let mut body = BytesMut::new();
    while let Some(data) = next_data(&mut incoming).await {
        let data = data.map_err(|_| WorkerQueryError::Broken)?;
        if body.len() + data.len() > most_bytes {
            return Err(WorkerQueryError::Broken);
        }
        body.extend_from_slice(&data);
    }
    pools.release(worker.id, connection, clock);
    Ok(WorkerReply {
        status: head.status.as_u16(),
        body,
    })
}

fn request(worker: &WorkerView, path: &str, body: Bytes) -> Request<Full<Bytes>> {
    let host = HeaderValue::try_from(worker.url.authority())
        .unwrap_or(HeaderValue::from_static("localhost"));
    let mut fields = headers::upstream_head(
        &HeaderMap::new(),
        host,
        worker.api_key.as_ref().map(|key| key.expose()),
        worker.engine,
    );
    fields.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    fields.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = worker
        .url
        .path(path)
        .parse()
        .unwrap_or_else(|_| Uri::from_static("/"));
    *request.headers_mut() = fields;
    request
}
