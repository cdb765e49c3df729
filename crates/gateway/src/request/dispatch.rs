//! Dispatch: one attempt at one worker, up to the commit point.
//!
//! **Invariant**: nothing has been forwarded when this stage returns. It returns either a reply
//! worth committing to or a failure with its retry class.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use config::RequestSection;
use dialect::{ApiError, ErrorCode};
use fleet::{FailureKind, WorkerView};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header, response::Parts};
use kv_blocks::{Moment, Target};
use net::Clock;
use otlp::SpanContext;
use proxy::{
    AbortSwitch, BodyBuffer, BodyFault, BodyRest, ClientUpgrade, NotSent, OutgoingRequest,
    SendFailure, Upstream, UpstreamBody, UpstreamReply, WorkerUpgrade, headers,
};
use routing::{
    AttemptEnd,
    receipt::{AttemptClass, AttemptResult},
};

use super::accept::AcceptedRequest;
use crate::errors;

/// A reply worth committing to.
#[derive(Debug)]
pub(crate) struct CommittedReply {
    pub(crate) head: Parts,
    pub(crate) content: BodyContent,
}

/// The reply's body as far as it is known at the commit point.
#[derive(Debug)]
pub(crate) enum BodyContent {
    /// The whole body: the connection is already back in its pool, or closed.
    Whole(Bytes),
    /// The first bytes of the body; more follow.
    Begun {
        first: Bytes,
        rest: UpstreamBody,
        kind: BodyKind,
    },
    /// No body: both connections leave HTTP.
    Switched(ClientUpgrade, WorkerUpgrade),
}

/// The framing by which a body is relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyKind {
    /// Server-sent events: relayed at event boundaries; a cut ends with an error event.
    Events,
    /// Plain bytes.
    Opaque,
}

/// A failed attempt, with nothing to forward.
#[derive(Debug)]
pub(crate) struct AttemptFailure {
    /// `None`: no retry, whatever the class table says.
    pub(crate) class: Option<AttemptClass>,
    /// The value in the receipt's `attempts`.
    pub(crate) result: AttemptResult,
    pub(crate) status: Option<u16>,
    /// The failure that is reported to the fleet.
    pub(crate) kind: Option<FailureKind>,
    /// The worker's `Retry-After`.
    pub(crate) wait: Option<Duration>,
    /// The client's reply if no further attempt follows.
    pub(crate) reply: FinalError,
}

/// The reply to the client when all attempts are used up.
#[derive(Debug)]
pub(crate) enum FinalError {
    /// An error of the router.
    Error(ApiError),
    /// The worker's own reply (a 429: the client's limit at the engine is the client's business).
    Pass(Parts, Bytes),
}

/// Unstreamed replies up to this size are buffered, so that a truncated one can still become an
/// error.
const BUFFERED_REPLY_BYTES: usize = 1024 * 1024;
/// Most bytes of an error reply that are read to reuse its connection.
const ERROR_BODY: usize = 64 * 1024;

/// Makes single attempts at workers.
#[derive(Clone, Debug)]
pub(crate) struct Dispatcher {
    pub(crate) upstream: Arc<dyn Upstream>,
    pub(crate) abort: Arc<AbortSwitch>,
    pub(crate) clock: Clock,
    pub(crate) limits: RequestSection,
}

/// A worker that gets the request.
#[derive(Clone, Debug)]
pub(crate) struct AttemptTarget {
    pub(crate) worker: Arc<WorkerView>,
    pub(crate) target: Target,
    /// The trace that it continues; `None`: that of the client's own header.
    pub(crate) span: Option<SpanContext>,
}

impl Dispatcher {
    /// Sends `body` under the request's head to `to` and waits until `deadline` for bytes to
    /// forward.
    pub(crate) async fn attempt(
        &self,
        call: &AcceptedRequest,
        body: Bytes,
        to: &AttemptTarget,
        deadline: Moment,
    ) -> Result<CommittedReply, AttemptFailure> {
        let left = deadline.since(self.clock.now());
        let result = tokio::select! {
            result = tokio::time::timeout(left, self.exchange(call, body, to)) => {
                match result {
                    Ok(result) => result,
                    Err(_) => Err(AttemptFailure::timeout(self.limits.timeout)),
                }
            }
            () = self.abort.aborted() => Err(AttemptFailure::draining()),
        };
        // The worker is not to blame for a body that its client did not send.
        let fault = call.rest.as_ref().and_then(BodyRest::fault);
        result.map_err(|failure| fault.map_or(failure, AttemptFailure::client_body))
    }

    /// Sends a request and waits for the head of its reply.
    pub(crate) async fn send(
        &self,
        call: &AcceptedRequest,
        body: Bytes,
        to: &AttemptTarget,
    ) -> Result<UpstreamReply, AttemptFailure> {
        let outgoing = OutgoingRequest {
            worker: to.worker.id,
            url: &to.worker.connection.url,
            request: request(call, body, to),
            rest: call.rest.clone(),
            connect_timeout: self.limits.connect_timeout,
        };
        let sent = self.upstream.send(outgoing).await;
        sent.map_err(AttemptFailure::from_send_failure)
    }

    async fn exchange(
        &self,
        call: &AcceptedRequest,
        body: Bytes,
        to: &AttemptTarget,
    ) -> Result<CommittedReply, AttemptFailure> {
        let UpstreamReply { head, mut body } = self.send(call, body, to).await?;
        if headers::has_conflicting_lengths(&head.headers) {
            return Err(AttemptFailure::protocol(
                "the worker's reply tells its length in two ways: try again".to_owned(),
            ));
        }
        match head.status.as_u16() {
            200..=299 => content(&self.limits, head, body).await,
            429 | 502 | 503 | 504 => {
                // A long error reply, or one that breaks off, costs its connection and its text.
                let body = body.read_to_end(ERROR_BODY).await.unwrap_or_default();
                Err(AttemptFailure::from_status(head, body))
            }
            400..=499 => content(&self.limits, head, body).await,
            status @ 500..=599 => Err(AttemptFailure::internal(status)),
            101 => switched(call, head, body).ok_or_else(|| {
                AttemptFailure::protocol(
                    "a worker changed the protocol to one that the request does not name: try again"
                        .to_owned(),
                )
            }),
            status => Err(AttemptFailure::protocol(format!(
                "a worker answered with the unexpected status {status}"
            ))),
        }
    }
}

/// Builds the request for the worker: the body, spliced or not, under a head of the router.
fn request(call: &AcceptedRequest, bytes: Bytes, to: &AttemptTarget) -> Request<Bytes> {
    let AttemptTarget {
        worker,
        target,
        span,
    } = to;
    let host = HeaderValue::try_from(worker.connection.url.authority())
        .unwrap_or(HeaderValue::from_static("localhost"));
    let mut fields = headers::upstream_head(&call.headers, host, worker.credentials());
    // A request that has no body by its method announces none.
    if call.method == Method::POST
        && let Some(length) = body_length(call, &bytes)
    {
        fields.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Ok(id) = HeaderValue::try_from(&*call.request_id) {
        fields.insert(headers::REQUEST_ID, id);
    }
    if let Some(span) = span {
        headers::insert(&mut fields, headers::TRACEPARENT, &span.to_string());
    }
    if call.upgrade.is_some() {
        headers::add_websocket(&mut fields);
    }
    if worker.dp_ranks() > 1 {
        fields.insert(headers::DP_RANK, HeaderValue::from(target.rank.0));
    }
    let mut request = Request::new(bytes);
    *request.method_mut() = call.method.clone();
    // The route table matched the path byte for byte: joined to the worker's base URL it is a valid
    // target.
    *request.uri_mut() = worker
        .connection
        .url
        .path(call.target.as_str())
        .parse()
        .unwrap_or_else(|_| Uri::from_static("/"));
    *request.headers_mut() = fields;
    request
}

/// Returns the length of a request's body; `None`: its client does not announce it.
fn body_length(call: &AcceptedRequest, first: &Bytes) -> Option<u64> {
    let rest = call.rest.as_ref().map_or(Some(0), BodyRest::announced);
    rest.map(|rest| rest + first.len() as u64)
}

/// Waits for the first bytes of a stream, or for all of a small reply.
async fn content(
    limits: &RequestSection,
    head: Parts,
    mut body: UpstreamBody,
) -> Result<CommittedReply, AttemptFailure> {
    if let Some(kind) = streamed_kind(&head.headers) {
        // The head alone is no reply yet: an engine that dies before its first event has not begun
        // to reply.
        return match body.next_data().await {
            Some(Ok(first)) => {
                let content = BodyContent::Begun {
                    first,
                    rest: body,
                    kind,
                };
                Ok(CommittedReply { head, content })
            }
            None if kind == BodyKind::Events && limits.strict_stream_completion => {
                Err(AttemptFailure::unfinished(
                    "the worker's stream ended before its first event: try again".to_owned(),
                ))
            }
            None => {
                body.release();
                Ok(CommittedReply {
                    head,
                    content: BodyContent::Whole(Bytes::new()),
                })
            }
            Some(Err(_)) => Err(AttemptFailure::no_answer()),
        };
    }
    let mut buffer = BodyBuffer::default();
    while let Some(data) = body.next_data().await {
        let Ok(data) = data else {
            // The engine had the reply when it sent the head. A retry would compute it again, so
            // none follows.
            return Err(AttemptFailure::protocol(
                "the worker's reply ended before its announced end: try again".to_owned(),
            ));
        };
        buffer.push(data);
        if buffer.len() > BUFFERED_REPLY_BYTES {
            let first = buffer.into_bytes();
            return Ok(CommittedReply {
                head,
                content: BodyContent::Begun {
                    first,
                    rest: body,
                    kind: BodyKind::Opaque,
                },
            });
        }
    }
    body.release();
    Ok(CommittedReply {
        head,
        content: BodyContent::Whole(buffer.into_bytes()),
    })
}

/// Returns a reply after which both connections leave HTTP; `None`: the client does not want that.
fn switched(call: &AcceptedRequest, head: Parts, body: UpstreamBody) -> Option<CommittedReply> {
    let client = call.upgrade.clone()?;
    let worker = body.into_upgrade();
    let worker = worker.filter(|_| headers::is_websocket(&head.headers))?;
    Some(CommittedReply {
        head,
        content: BodyContent::Switched(client, worker),
    })
}

/// Returns the framing of a reply that is forwarded from its first bytes on; `None`: a small reply
/// is read to its end first. Speech is played while the engine still computes it.
fn streamed_kind(headers: &HeaderMap) -> Option<BodyKind> {
    if is_event_stream(headers) {
        return Some(BodyKind::Events);
    }
    has_type(headers, "audio/").then_some(BodyKind::Opaque)
}

pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    has_type(headers, "text/event-stream")
}

fn has_type(headers: &HeaderMap, prefix: &str) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.trim_start().to_ascii_lowercase().starts_with(prefix))
}

impl AttemptFailure {
    /// Returns the attempt's end, for the router.
    pub(super) fn attempt_end(&self) -> AttemptEnd {
        match self.kind {
            None | Some(FailureKind::Local) => AttemptEnd::NotTaken,
            Some(_) => AttemptEnd::Failed,
        }
    }

    pub(super) fn from_send_failure(failure: SendFailure) -> Self {
        match failure {
            SendFailure::NotSent(NotSent::Refused) => {
                Self::not_sent(FailureKind::Refused, errors::no_worker())
            }
            SendFailure::NotSent(NotSent::Unreachable) => {
                Self::not_sent(FailureKind::ConnectTimeout, errors::no_worker())
            }
            SendFailure::NotSent(NotSent::Local(_)) => {
                Self::not_sent(FailureKind::Local, errors::no_connection())
            }
            SendFailure::NoHead => Self::no_answer(),
            SendFailure::Protocol => {
                Self::protocol("the worker's reply is not valid HTTP: try again".to_owned())
            }
        }
    }

    fn not_sent(kind: FailureKind, error: ApiError) -> Self {
        Self {
            class: Some(AttemptClass::C0),
            result: AttemptResult::ConnectFailed,
            status: None,
            kind: Some(kind),
            wait: None,
            reply: FinalError::Error(error),
        }
    }

    pub(super) fn no_answer() -> Self {
        Self {
            class: Some(AttemptClass::C1),
            result: AttemptResult::ResetBeforeHead,
            status: None,
            kind: Some(FailureKind::ResetBeforeHead),
            wait: None,
            reply: FinalError::Error(ApiError::new(
                ErrorCode::UpstreamReset,
                "the worker closed the connection before it answered, and no other worker could take the request: \
                 try again",
            )),
        }
    }

    pub(super) fn from_status(mut head: Parts, body: Bytes) -> Self {
        let status = head.status;
        let wait = retry_after(&head.headers);
        let reply = match status {
            StatusCode::TOO_MANY_REQUESTS => {
                // Every 429 carries a `Retry-After`, within the range of the router's own errors.
                head.headers.insert(
                    header::RETRY_AFTER,
                    HeaderValue::from(wait.unwrap_or(1).max(1)),
                );
                FinalError::Pass(head, body)
            }
            StatusCode::SERVICE_UNAVAILABLE => FinalError::Error(
                ApiError::new(
                    ErrorCode::Overloaded,
                    "every worker that could take the request is busy or loading: try again",
                )
                .with_retry_after(wait.unwrap_or(1)),
            ),
            StatusCode::GATEWAY_TIMEOUT => FinalError::Error(ApiError::new(
                ErrorCode::FirstByteTimeout,
                "the worker gave up waiting for its own engine: try again",
            )),
            _ => FinalError::Error(ApiError::new(
                ErrorCode::UpstreamProtocol,
                "the worker could not reach its own engine: try again",
            )),
        };
        let kind = match status {
            StatusCode::SERVICE_UNAVAILABLE => Some(FailureKind::Unavailable),
            // A worker that throttles is healthy.
            StatusCode::TOO_MANY_REQUESTS => None,
            _ => Some(FailureKind::Status),
        };
        Self {
            class: Some(AttemptClass::C2),
            result: AttemptResult::Status,
            status: Some(status.as_u16()),
            kind,
            // A 503 triggers a check: the worker may be loading, and is used again as soon as it is
            // ready.
            wait: wait
                .filter(|_| status == StatusCode::TOO_MANY_REQUESTS)
                .map(|s| Duration::from_secs(s.into())),
            reply,
        }
    }

    pub(super) fn internal(status: u16) -> Self {
        Self {
            class: None,
            result: AttemptResult::Status,
            status: Some(status),
            kind: Some(FailureKind::Status),
            wait: None,
            reply: FinalError::Error(
                ApiError::new(
                    ErrorCode::Internal,
                    format!(
                        "the worker failed with status {status}; its own message is in its log"
                    ),
                )
                .with_status(status),
            ),
        }
    }

    pub(super) fn protocol(message: String) -> Self {
        Self {
            class: None,
            result: AttemptResult::Protocol,
            status: None,
            kind: Some(FailureKind::Protocol),
            wait: None,
            reply: FinalError::Error(ApiError::new(ErrorCode::UpstreamProtocol, message)),
        }
    }

    /// An empty stream: the client would take it for a reply.
    fn unfinished(message: String) -> Self {
        Self {
            kind: Some(FailureKind::Incomplete),
            ..Self::protocol(message)
        }
    }

    pub(super) fn timeout(limit: Duration) -> Self {
        Self {
            class: None,
            result: AttemptResult::Timeout,
            status: None,
            kind: Some(FailureKind::FirstByteTimeout),
            wait: None,
            reply: FinalError::Error(ApiError::new(
                ErrorCode::FirstByteTimeout,
                format!(
                    "no answer within {} s (request.timeout): try again later",
                    limit.as_secs_f64()
                ),
            )),
        }
    }

    /// The client did not send the rest of its body.
    fn client_body(fault: BodyFault) -> Self {
        let (code, message) = match fault {
            BodyFault::TooLong => (
                ErrorCode::BodyTooLarge,
                "the request body is longer than server.max_body_bytes",
            ),
            BodyFault::Stalled => (
                ErrorCode::InvalidRequest,
                "the rest of the request body did not arrive: send it without long pauses",
            ),
            BodyFault::Broken => (
                ErrorCode::InvalidRequest,
                "the request body ended early or is not validly framed",
            ),
        };
        Self {
            class: None,
            result: AttemptResult::ClientGone,
            status: None,
            kind: None,
            wait: None,
            reply: FinalError::Error(ApiError::new(code, message)),
        }
    }

    /// The drain time is up.
    pub(super) fn draining() -> Self {
        Self {
            class: None,
            result: AttemptResult::Timeout,
            status: None,
            kind: None,
            wait: None,
            reply: FinalError::Error(
                ApiError::new(
                    ErrorCode::Draining,
                    "the router is going down and could not wait for the answer: try again",
                )
                .with_retry_after(1),
            ),
        }
    }

    /// Returns the worker's `Retry-After`, in seconds.
    pub(crate) fn retry_after(&self) -> Option<u32> {
        match &self.reply {
            FinalError::Error(error) => error.retry_after_s,
            FinalError::Pass(head, _) => retry_after(&head.headers),
        }
    }
}

/// Reads `Retry-After` in seconds. A date or an invalid value counts as absent, and no value
/// exceeds a minute.
fn retry_after(headers: &HeaderMap) -> Option<u32> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    Some(u32::try_from(value.trim().parse::<u64>().ok()?.min(60)).unwrap_or(60))
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use proxy::{FakeReply, FakeUpstream};

    use super::{super::test_support, *};

    #[test]
    #[contract("F15")]
    fn a_workers_retry_after_is_capped_at_a_minute() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(value));
            retry_after(&headers)
        };
        assert_eq!(with("7"), Some(7));
        assert_eq!(with("99999999"), Some(60));
        assert_eq!(with("Wed, 21 Oct 2026 07:28:00 GMT"), None);
        assert_eq!(with("-1"), None);
    }

    /// One attempt at a worker that replies by the script.
    async fn attempt(reply: FakeReply) -> (Result<CommittedReply, AttemptFailure>, usize) {
        let upstream = Arc::new(FakeUpstream::default());
        let to = test_support::attempt_target(1);
        upstream.script(to.worker.id, reply);
        let dispatcher = test_support::dispatcher(&upstream);
        let call = test_support::call(r#"{"model":"m"}"#);
        let deadline = dispatcher.clock.now() + dispatcher.limits.timeout;
        let body = call.body.bytes().clone();
        let result = dispatcher.attempt(&call, body, &to, deadline).await;
        (result, upstream.released())
    }

    #[tokio::test]
    #[contract("F1", "F2", "F3")]
    async fn each_failure_before_a_reply_has_its_class_and_its_cause() {
        use AttemptClass::{C0, C1, C2};
        use proxy::NotSent::{Refused, Unreachable};
        let not_sent = |why| FakeReply::failure(SendFailure::NotSent(why));
        let cases = [
            (not_sent(Refused), Some(C0), Some(FailureKind::Refused)),
            (
                not_sent(Unreachable),
                Some(C0),
                Some(FailureKind::ConnectTimeout),
            ),
            (
                FakeReply::failure(SendFailure::NoHead),
                Some(C1),
                Some(FailureKind::ResetBeforeHead),
            ),
            (
                FakeReply::failure(SendFailure::Protocol),
                None,
                Some(FailureKind::Protocol),
            ),
            (FakeReply::json(429, "{}"), Some(C2), None),
            (
                FakeReply::json(502, "{}"),
                Some(C2),
                Some(FailureKind::Status),
            ),
            (
                FakeReply::json(503, "{}"),
                Some(C2),
                Some(FailureKind::Unavailable),
            ),
            (
                FakeReply::json(504, "{}"),
                Some(C2),
                Some(FailureKind::Status),
            ),
            (FakeReply::json(500, "{}"), None, Some(FailureKind::Status)),
            (
                FakeReply::json(301, "{}"),
                None,
                Some(FailureKind::Protocol),
            ),
        ];
        for (number, (reply, class, kind)) in cases.into_iter().enumerate() {
            let (result, _) = attempt(reply).await;
            let failure = result.expect_err("nothing is worth committing to");
            assert_eq!(
                (failure.class, failure.kind),
                (class, kind),
                "case {number}"
            );
        }
    }

    #[tokio::test]
    async fn a_whole_reply_and_a_clients_error_are_committed_to_and_free_their_connection() {
        for status in [200, 400, 404, 422] {
            let (result, released) = attempt(FakeReply::json(status, r#"{"a":1}"#)).await;
            let CommittedReply { head, content } = result.expect("a reply");
            assert_eq!((head.status.as_u16(), released), (status, 1));
            assert!(matches!(content, BodyContent::Whole(bytes) if bytes == r#"{"a":1}"#));
        }
    }

    #[tokio::test]
    #[contract("F18")]
    async fn a_stream_is_committed_to_at_its_first_bytes_and_not_at_its_head() {
        let (result, released) = attempt(FakeReply::events([Ok("data: a\n\n".into())])).await;
        let content = result.expect("a reply").content;
        assert!(matches!(
            content,
            BodyContent::Begun { first, kind: BodyKind::Events, .. } if first == "data: a\n\n"
        ));
        assert_eq!(released, 0);
        let (result, _) = attempt(FakeReply::events([Err("reset")])).await;
        let failure = result.expect_err("no event came");
        assert_eq!(failure.class, Some(AttemptClass::C1));
    }

    #[tokio::test]
    async fn a_reply_that_ends_early_is_a_failure_that_no_retry_follows() {
        let broken = [Ok(Bytes::from_static(b"{\"a\"")), Err("reset")];
        let (result, released) = attempt(FakeReply::pieces(http::Response::new(()), broken)).await;
        let failure = result.expect_err("half a reply");
        assert_eq!((failure.class, released), (None, 0));
    }

    #[tokio::test]
    async fn a_reply_too_long_to_be_buffered_is_relayed_from_its_first_mebibyte_on() {
        let piece = Bytes::from(vec![b' '; BUFFERED_REPLY_BYTES]);
        let pieces = [Ok(piece), Ok(Bytes::from_static(b"x")), Ok("rest".into())];
        let (result, _) = attempt(FakeReply::pieces(http::Response::new(()), pieces)).await;
        let content = result.expect("a reply").content;
        assert!(matches!(
            content,
            BodyContent::Begun { first, kind: BodyKind::Opaque, .. } if first.len() == BUFFERED_REPLY_BYTES + 1
        ));
    }

    #[tokio::test(start_paused = true)]
    #[contract("F6")]
    async fn a_worker_that_sends_no_byte_in_time_is_a_timeout_that_no_retry_follows() {
        let late = FakeReply::json(200, "{}").after(Duration::from_secs(3600));
        let failure = attempt(late).await.0.expect_err("it is late");
        assert_eq!(failure.class, None);
        assert_eq!(failure.kind, Some(FailureKind::FirstByteTimeout));
    }

    #[tokio::test]
    #[contract("S27")]
    async fn a_worker_gets_the_clients_bytes_and_its_own_key_and_not_the_clients() {
        let upstream = Arc::new(FakeUpstream::default());
        let dispatcher = test_support::dispatcher(&upstream);
        let mut worker = test_support::worker(1);
        worker.connection.api_key = Some(config::Secret::new("worker"));
        let to = AttemptTarget {
            target: test_support::target(&worker),
            worker: Arc::new(worker),
            span: None,
        };
        upstream.script(to.worker.id, FakeReply::json(200, "{}"));
        let mut call = test_support::call(r#"{"model": "m" }"#);
        let client = HeaderValue::from_static("Bearer client");
        call.headers.insert(header::AUTHORIZATION, client);
        let deadline = dispatcher.clock.now() + dispatcher.limits.timeout;
        let body = call.body.bytes().clone();
        let sent = dispatcher.attempt(&call, body, &to, deadline).await;
        assert!(sent.is_ok());
        let [request] = <[_; 1]>::try_from(upstream.take_requests()).expect("one request");
        assert_eq!(*request.body(), r#"{"model": "m" }"#);
        assert_eq!(request.uri().path(), "/v1/chat/completions");
        assert_eq!(request.headers()[header::AUTHORIZATION], "Bearer worker");
        assert_eq!(request.headers()[headers::REQUEST_ID], "r1");
    }
}
