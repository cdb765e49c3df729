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
    /// What begins the part of an answer that is not read, if it has one.
    pub end_mark: Option<&'static [u8]>,
    /// Time limit to open a connection.
    pub connect_timeout: Duration,
}

/// A complete answer, or one up to the query's mark.
#[derive(Debug)]
pub struct JsonReply {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Bytes,
    /// Whether the body ends before the mark.
    pub is_cut: bool,
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
        end_mark,
        connect_timeout,
    } = query;
    let outgoing = OutgoingRequest {
        worker,
        url,
        request: post(url, credentials, path, body),
        rest: None,
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
    let read = match end_mark {
        Some(mark) => reply.body.read_until(mark, most_bytes).await,
        None => {
            let whole = reply.body.read_to_end(most_bytes).await;
            whole.map(|body| (body, false))
        }
    };
    let (body, is_cut) = read.map_err(|_| QueryError::Broken)?;
    Ok(JsonReply {
        status: reply.head.status.as_u16(),
        body,
        is_cut,
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

#[cfg(test)]
mod tests {
    use http::Response;
    use net::LocalFault;

    use super::*;
    use crate::{FakeReply, FakeUpstream, NotSent};

    const WORKER: WorkerId = WorkerId(1);

    /// Sends a query to a worker with this reply, and returns the request that it got.
    async fn query(reply: FakeReply) -> (Result<JsonReply, QueryError>, Request<Bytes>) {
        let upstream = FakeUpstream::default();
        upstream.script(WORKER, reply);
        let result = query_to(&upstream, None).await;
        let request = upstream.take_requests().pop().expect("one request");
        (result, request)
    }

    async fn query_to(
        upstream: &FakeUpstream,
        end_mark: Option<&'static [u8]>,
    ) -> Result<JsonReply, QueryError> {
        let url: WorkerUrl = "http://engine:8000/base".parse().expect("a URL");
        let key = HeaderValue::from_static("Bearer worker");
        let query = JsonQuery {
            worker: WORKER,
            url: &url,
            credentials: [(header::AUTHORIZATION, key)],
            path: "/tokenize",
            body: Bytes::from_static(b"{}"),
            most_bytes: 10,
            end_mark,
            connect_timeout: Duration::from_secs(1),
        };
        send_query(upstream, query).await
    }

    #[tokio::test]
    async fn a_query_is_a_json_post_below_the_base_path_with_the_workers_key() {
        let (_, request) = query(FakeReply::json(200, "{}")).await;
        assert_eq!(request.method(), Method::POST);
        assert_eq!(request.uri(), "/base/tokenize");
        for (name, value) in [
            ("host", "engine:8000"),
            ("authorization", "Bearer worker"),
            ("content-type", "application/json"),
            ("content-length", "2"),
        ] {
            assert_eq!(request.headers()[name], value, "{name}");
        }
        assert_eq!(request.headers().len(), 4);
        assert_eq!(*request.body(), "{}");
    }

    #[tokio::test]
    async fn an_answer_of_any_status_is_returned_with_its_body() {
        for status in [200, 404, 503] {
            let reply = query(FakeReply::json(status, "[1]")).await.0;
            let reply = reply.expect("an answer");
            assert_eq!((reply.status, &*reply.body), (status, &b"[1]"[..]));
        }
    }

    #[tokio::test]
    async fn the_error_says_how_far_the_query_came() {
        let not_sent = |why| FakeReply::failure(SendFailure::NotSent(why));
        for (reply, error) in [
            (not_sent(NotSent::Refused), QueryError::Unreachable),
            (not_sent(NotSent::Unreachable), QueryError::Unreachable),
            (
                not_sent(NotSent::Local(LocalFault::Memory)),
                QueryError::Unreachable,
            ),
            (FakeReply::failure(SendFailure::NoHead), QueryError::Lost),
            (
                FakeReply::failure(SendFailure::Protocol),
                QueryError::Broken,
            ),
        ] {
            let what = format!("{reply:?}");
            assert_eq!(query(reply).await.0.err(), Some(error), "{what}");
        }
    }

    #[tokio::test]
    async fn an_answer_with_a_mark_is_read_up_to_it_and_its_connection_closed() {
        for (pieces, expected) in [
            (vec!["12<>34"], Ok(("12", true))),
            (vec!["12<", ">34"], Ok(("12", true))),
            (vec!["12", "<", ">", "34"], Ok(("12", true))),
            (vec!["<>"], Ok(("", true))),
            (vec!["12<", "3>"], Ok(("12<3>", false))),
            (vec!["1234567890<>long"], Ok(("1234567890", true))),
            (vec!["12345678901<>"], Err(QueryError::Broken)),
            (vec!["1234567890", "1<>"], Err(QueryError::Broken)),
        ] {
            let upstream = FakeUpstream::default();
            let sent = pieces.iter().map(|piece| Ok((*piece).into()));
            upstream.script(WORKER, FakeReply::pieces(Response::new(()), sent));
            let reply = query_to(&upstream, Some(b"<>")).await;
            let is_whole = reply.as_ref().is_ok_and(|reply| !reply.is_cut);
            let read = reply.map(|reply| (reply.body, reply.is_cut));
            let expected = expected.map(|(body, is_cut)| (Bytes::from(body), is_cut));
            assert_eq!(read, expected, "{pieces:?}");
            assert_eq!(upstream.released(), usize::from(is_whole), "{pieces:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_cut_or_ambiguous_is_broken() {
        let long = FakeReply::json(200, "12345678901");
        let cut = FakeReply::pieces(Response::new(()), [Ok("{".into()), Err("reset")]);
        let head = Response::builder()
            .header(header::CONTENT_LENGTH, 2)
            .header(header::TRANSFER_ENCODING, "chunked");
        let ambiguous = FakeReply::pieces(head.body(()).expect("a head"), [Ok("{}".into())]);
        for reply in [long, cut, ambiguous] {
            let what = format!("{reply:?}");
            assert_eq!(
                query(reply).await.0.err(),
                Some(QueryError::Broken),
                "{what}"
            );
        }
        let longest = query(FakeReply::json(200, "1234567890")).await.0;
        assert_eq!(longest.expect("it fits").body.len(), 10);
    }
}
