//! Dispatch: one attempt at one worker, up to the commit point.
//!
//! **Invariant**: nothing has been forwarded when this stage returns. It returns either a reply
//! worth committing to or a failure with its retry class.

use std::sync::Arc;

use bytes::Bytes;
use config::RequestSection;
use fleet::WorkerView;
use http::{HeaderMap, HeaderValue, header, response::Parts};
use kv_blocks::{Moment, Target};
use net::Clock;
use otlp::SpanContext;
use proxy::{
    AbortSwitch, BodyBuffer, BodyRest, ClientUpgrade, OutgoingRequest, ReadError, Upstream,
    UpstreamBody, UpstreamReply, WorkerUpgrade, headers,
};

use super::{
    accept::AcceptedRequest, attempt_failure::AttemptFailure, error_text,
    upstream_request::upstream_request,
};

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

/// Unstreamed replies up to this size are buffered if they fit into the body budget, so that a
/// truncated one can still become an error.
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
    /// The address of the worker from which it reads blocks, if a header tells it.
    pub(crate) kv_source: Option<HeaderValue>,
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
            request: upstream_request(call, body, to),
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
            200..=299 => content(&self.limits, call, head, body).await,
            429 | 502 | 503 | 504 => {
                // A long error reply, or one that breaks off, costs its connection and its text.
                let text = body.read_to_end(ERROR_BODY).await;
                let passes = text.as_ref().is_ok_and(|text| {
                    head.status != 429 || error_text::withheld(&head, text, call, to).is_none()
                });
                let failure = AttemptFailure::from_status(head, text.unwrap_or_default());
                Err(if passes {
                    failure
                } else {
                    failure.without_text()
                })
            }
            400..=499 => refusal(call, to, head, body).await,
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

/// Waits for all of a refusal, whose text is not for clients if it is of the worker's server, or too
/// long to tell.
async fn refusal(
    call: &AcceptedRequest,
    to: &AttemptTarget,
    head: Parts,
    mut body: UpstreamBody,
) -> Result<CommittedReply, AttemptFailure> {
    let text = match body.read_to_end(BUFFERED_REPLY_BYTES).await {
        Ok(text) => text,
        Err(ReadError::TooLong) => return Err(AttemptFailure::refused(head.status)),
        Err(ReadError::Broken) => return Err(AttemptFailure::cut_short()),
    };
    if error_text::withheld(&head, &text, call, to).is_some() {
        return Err(AttemptFailure::refused(head.status));
    }
    Ok(CommittedReply {
        head,
        content: BodyContent::Whole(call.body.hold_reply(text)),
    })
}

/// Waits for the first bytes of a stream or of a reply that is too long to be buffered, or for all
/// of a small reply.
async fn content(
    limits: &RequestSection,
    call: &AcceptedRequest,
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
    let mut permit = call.body.reply_permit();
    while let Some(data) = body.next_data().await {
        let Ok(data) = data else {
            // The engine had the reply when it sent the head. A retry would compute it again, so
            // none follows.
            return Err(AttemptFailure::cut_short());
        };
        buffer.push(data);
        let fits = permit.grow_to(buffer.len() as u64).is_ok();
        if !fits || buffer.len() > BUFFERED_REPLY_BYTES {
            // What fitted counts; the last piece is as long as one of a stream.
            let first = permit.hold(buffer.into_bytes());
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
        content: BodyContent::Whole(permit.hold(buffer.into_bytes())),
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
        .and_then(|value| value.trim_start().get(..prefix.len()))
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract_id::contract;
    use fleet::FailureKind;
    use prometheus_client::metrics::gauge::Gauge;
    use proxy::{FakeReply, FakeUpstream, SendFailure};
    use routing::receipt::AttemptClass;

    use super::{
        super::{attempt_failure::FinalError, body_budget::BodyLimits, test_support},
        *,
    };

    /// One attempt at a worker that replies by the script.
    async fn attempt(reply: FakeReply) -> (Result<CommittedReply, AttemptFailure>, usize) {
        attempt_of(&test_support::call(r#"{"model":"m"}"#), reply).await
    }

    /// One attempt of this request.
    async fn attempt_of(
        call: &AcceptedRequest,
        reply: FakeReply,
    ) -> (Result<CommittedReply, AttemptFailure>, usize) {
        let upstream = Arc::new(FakeUpstream::default());
        let to = test_support::attempt_target(1);
        upstream.script(to.worker.id, reply);
        let dispatcher = test_support::dispatcher(&upstream);
        let deadline = dispatcher.clock.now() + dispatcher.limits.timeout;
        let body = call.body.bytes().clone();
        let result = dispatcher.attempt(call, body, &to, deadline).await;
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
    #[contract("S71")]
    async fn a_refusal_whose_text_is_not_for_clients_keeps_its_status_only() {
        let reply = |status, text: &str| FakeReply::json(status, text.to_owned());
        let encoded = http::Response::builder()
            .status(422)
            .header(header::CONTENT_ENCODING, "gzip")
            .body(())
            .expect("a head");
        let long = Bytes::from(vec![b' '; BUFFERED_REPLY_BYTES + 1]);
        let long_head = http::Response::builder().status(413).body(());
        for (reply, status, released) in [
            (reply(400, "at 0x7f3a5c001240"), 400, 1),
            (reply(404, "in /usr/lib/engine"), 404, 1),
            (reply(401, "Traceback (most recent call last):"), 401, 1),
            (reply(400, "127.0.0.1:9001 is not 10.0.0.7"), 400, 1),
            (reply(418, "\0"), 418, 1),
            (FakeReply::pieces(encoded, [Ok("{}".into())]), 422, 1),
            (
                FakeReply::pieces(long_head.expect("a head"), [Ok(long)]),
                413,
                0,
            ),
        ] {
            let (result, connections) = attempt(reply).await;
            let failure = result.expect_err("its text is withheld");
            assert_eq!((failure.status, failure.class), (Some(status), None));
            assert_eq!((failure.kind, connections), (None, released), "{status}");
            let FinalError::Error(error) = failure.reply else {
                panic!("{status} has the worker's text");
            };
            assert_eq!(error.status, status);
            assert!(error.message.ends_with("its own message is in its log"));
        }
    }

    #[tokio::test]
    #[contract("S71")]
    async fn a_429_whose_text_is_not_for_clients_is_retried_and_waited_for_like_any_other() {
        let (result, _) = attempt(FakeReply::json(429, "10.0.0.7:80 is busy")).await;
        let failure = result.expect_err("it throttles");
        assert_eq!(failure.class, Some(AttemptClass::C2));
        let FinalError::Error(error) = failure.reply else {
            panic!("it has the worker's text");
        };
        assert_eq!((error.status, error.retry_after()), (429, Some(1)));
        let (result, _) = attempt(FakeReply::json(429, "busy")).await;
        let failure = result.expect_err("it throttles");
        assert!(matches!(failure.reply, FinalError::Pass(_, text) if text == "busy"));
    }

    #[tokio::test]
    #[contract("S71")]
    async fn a_refusal_that_repeats_the_clients_request_passes() {
        let upstream = Arc::new(FakeUpstream::default());
        let (dispatcher, to) = (
            test_support::dispatcher(&upstream),
            test_support::attempt_target(1),
        );
        let call = test_support::call(r#"{"model":"m","user":"/home/me at 0x7f3a5c001240"}"#);
        let text = r#"{"message":"user /home/me at 0x7f3a5c001240 is unknown"}"#;
        upstream.script(to.worker.id, FakeReply::json(400, text));
        let deadline = dispatcher.clock.now() + dispatcher.limits.timeout;
        let body = call.body.bytes().clone();
        let result = dispatcher.attempt(&call, body, &to, deadline).await;
        let content = result.expect("a reply").content;
        assert!(matches!(content, BodyContent::Whole(bytes) if bytes == text));
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

    #[tokio::test]
    #[contract("F76")]
    async fn a_whole_reply_counts_in_the_body_budget_until_it_is_dropped() {
        let (limits, held) = (room_for(100), Gauge::default());
        let call = test_support::call_within(limits, held.clone(), "{}");
        for status in [200, 400] {
            let (result, _) = attempt_of(&call, FakeReply::json(status, r#"{"a":1}"#)).await;
            let content = result.expect("a reply").content;
            assert_eq!(held.get(), 2 + 7, "{status}");
            drop(content);
            assert_eq!(held.get(), 2, "the request's own body");
        }
    }

    #[tokio::test]
    #[contract("F76")]
    async fn a_reply_that_does_not_fit_into_the_body_budget_is_relayed_from_its_first_bytes_on() {
        let (limits, held) = (room_for(8), Gauge::default());
        let call = test_support::call_within(limits, held.clone(), "{}");
        let pieces = ["1234", "56789", "rest"].map(|piece| Ok(Bytes::from(piece)));
        let (result, released) =
            attempt_of(&call, FakeReply::pieces(http::Response::new(()), pieces)).await;
        let content = result.expect("a reply").content;
        assert_eq!((held.get(), released), (2 + 4, 0));
        assert!(matches!(
            content,
            BodyContent::Begun { first, kind: BodyKind::Opaque, .. } if first == "123456789"
        ));
        assert_eq!(held.get(), 2);
    }

    /// Limits with room for this many bytes of a request and its reply.
    fn room_for(bytes: u64) -> BodyLimits {
        BodyLimits {
            max_buffered: bytes,
            max_body: bytes,
        }
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
            kv_source: None,
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
        assert!(!request.headers().contains_key(headers::KV_SOURCE));
    }

    #[tokio::test]
    #[contract("S43")]
    async fn a_sidecar_is_told_the_routers_source_and_never_the_clients() {
        let (router, client) = ("10.0.0.2:8000", "10.0.0.9:8000");
        for (source, told) in [(None, None), (Some(router), Some(router))] {
            let upstream = Arc::new(FakeUpstream::default());
            let dispatcher = test_support::dispatcher(&upstream);
            let to = AttemptTarget {
                kv_source: source.map(HeaderValue::from_static),
                ..test_support::attempt_target(1)
            };
            upstream.script(to.worker.id, FakeReply::json(200, "{}"));
            let mut call = test_support::call(r#"{"model": "m" }"#);
            let named = HeaderValue::from_static(client);
            call.headers.insert(headers::KV_SOURCE, named);
            let deadline = dispatcher.clock.now() + dispatcher.limits.timeout;
            let body = call.body.bytes().clone();
            let sent = dispatcher.attempt(&call, body, &to, deadline).await;
            assert!(sent.is_ok());
            let [request] = <[_; 1]>::try_from(upstream.take_requests()).expect("one request");
            let found = request.headers().get(headers::KV_SOURCE);
            assert_eq!(found.and_then(|value| value.to_str().ok()), told);
        }
    }
}
