//! Delivery: places a request, sends it, and retries until a reply is committed to or no attempt is
//! left.

use std::sync::Arc;

use http::Response;
use proxy::{BodyRest, Tunnel, TunnelLimits, headers};
use routing::receipt::AttemptClass;

use super::{
    affinity::AffinityStage,
    attempt_failure::{AttemptFailure, FinalError},
    conversation::Conversation,
    dispatch::{self, BodyContent, CommittedReply, Dispatcher},
    hedge::worker_pin,
    prefill::Handover,
    queue_wait::{QueueStage, Rejection},
    record::RequestGuard,
    relay::{ReplyRelay, ReplyStart},
    reply,
    reply_body::ReplyBody,
    retry_state::{FailedAttempt, RetryStage, RetryState},
    send::{self, Attempt, AttemptOutcome, Failure, RoutedRequest, SendStage},
    translate::StreamTranslator,
};
use crate::{errors, retry::Retries};

/// The stages from the decision to the committed reply.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryStage {
    pub(crate) queue: QueueStage,
    pub(crate) retries: Retries,
    pub(crate) send: SendStage,
    pub(crate) affinity: AffinityStage,
}

impl DeliveryStage {
    /// Places the request, sends it and relays the reply.
    pub(super) async fn run(
        &self,
        mut request: RoutedRequest,
        mut guard: Box<RequestGuard>,
    ) -> Response<ReplyBody> {
        let mut retry_state = RetryState::default();
        loop {
            let RoutedRequest {
                call,
                facts,
                model,
                wait,
                ..
            } = &mut request;
            let placement = send::placement(call, facts, &retry_state);
            let placed = self.queue.place(model, &placement, wait).await;
            guard.record_wait(wait.receipt_wait());
            let placed = match placed {
                Ok(placed) => placed,
                Err(_) if facts.pin.is_none() && retry_state.may_wait_for_worker(&self.queue) => {
                    continue;
                }
                Err(Rejection { refusal, error }) => {
                    guard.record_refusal(refusal);
                    return reply::last_failure(guard, retry_state.final_error(error));
                }
            };
            let attempt = Attempt {
                request: &request,
                decider: &self.queue.decider,
                retries: &self.retries,
                retry_state: &retry_state,
            };
            let failure = match self.send.run(attempt, placed, &mut guard).await {
                AttemptOutcome::Committed(committed) => {
                    if committed.reply.head.status.is_success() {
                        self.affinity
                            .record_served(&request.facts.affinity, committed.by.worker.id);
                    }
                    let dispatcher = &self.send.dispatcher;
                    return commit(dispatcher, committed.reply, committed.stream, guard);
                }
                AttemptOutcome::PrefillFailed => {
                    request.facts.handover = guard.without_prefill();
                    continue;
                }
                AttemptOutcome::Refused(error) => return reply::refused(guard, &error),
                AttemptOutcome::Failed(failure) => *failure,
            };
            let next = self.next_attempt(&mut request, failure, &mut retry_state, &mut guard);
            if let Some(last) = Box::pin(next).await {
                return reply::last_failure(guard, last);
            }
        }
    }

    /// Prepares the next attempt; `Some`: none follows, and the client gets this.
    async fn next_attempt(
        &self,
        request: &mut RoutedRequest,
        failure: Failure,
        retry_state: &mut RetryState,
        guard: &mut RequestGuard,
    ) -> Option<FinalError> {
        let Failure {
            failure,
            by,
            also_failed,
        } = failure;
        guard.fail_attempt(&failure);
        if may_be_stored(request, &failure) || is_partly_sent(request) {
            return Some(failure.reply);
        }
        if let Some(other) = also_failed {
            retry_state.record_hedge_failure(worker_pin(&other));
        }
        // A pin that names the prefill worker leaves the decode worker open.
        let worker = by.target.worker;
        let failed = FailedAttempt {
            worker,
            pinned: request.facts.pin.is_some_and(|pin| pin.worker == worker),
            failure,
        };
        let stage = RetryStage {
            retries: &self.retries,
            queue: &self.queue,
            model: &request.model,
        };
        if !retry_state
            .next_attempt(stage, failed, &mut request.wait)
            .await
        {
            return Some(retry_state.final_error(errors::no_worker()));
        }
        // The fleet may have changed since: the new snapshot includes the effect of this attempt.
        if let Some(now) = self.queue.fleet.snapshot().model(&request.model.id) {
            request.model = Arc::clone(now);
        }
        None
    }
}

/// Returns whether an engine that stores responses may have done what the request says: after C1 a
/// retry could compute and store a response twice, and after any reply cancel or delete it twice.
fn may_be_stored(request: &RoutedRequest, failure: &AttemptFailure) -> bool {
    let generates = !matches!(request.facts.handover, Handover::NoPrompt);
    request.translator.keeps_state
        && match failure.class {
            Some(AttemptClass::C0) => false,
            Some(AttemptClass::C1) => true,
            _ => !generates,
        }
}

/// Returns whether a part of the body is gone, which was not buffered.
fn is_partly_sent(request: &RoutedRequest) -> bool {
    let rest = request.call.rest.as_ref();
    rest.is_some_and(BodyRest::is_started)
}

/// Commits to a reply: from here on it is the client's, and nothing is retried. Its body carries the
/// rest of the request with it.
fn commit(
    dispatcher: &Dispatcher,
    committed: CommittedReply,
    stream: Option<StreamTranslator>,
    mut guard: Box<RequestGuard>,
) -> Response<ReplyBody> {
    let CommittedReply { head, content } = committed;
    guard.commit(head.status.as_u16(), &content);
    let is_empty = matches!(&content, BodyContent::Whole(bytes) if bytes.is_empty());
    let empty_stream =
        is_empty && guard.expected_ending().is_some() && dispatch::is_event_stream(&head.headers);
    let mut head = reply::head(&head, &guard);
    let body = match content {
        BodyContent::Switched(client, worker) => {
            headers::add_websocket(&mut head.1);
            let limits = dispatcher.limits;
            let tunnel = Tunnel {
                client,
                worker,
                limits: TunnelLimits {
                    idle: limits.stream_idle_timeout,
                    total: limits.stream_max_duration,
                },
            };
            ReplyBody::conversation(Conversation::new(tunnel, dispatcher.abort.aborted(), guard))
        }
        BodyContent::Whole(bytes) => {
            if empty_stream {
                guard.record_incomplete();
            }
            if let Some(chunk) = dialect::StreamChunk::read(&bytes) {
                guard.record_chunk(&chunk);
            }
            ReplyBody::whole(bytes, guard)
        }
        BodyContent::Begun { first, rest, kind } => ReplyBody::live(ReplyRelay::new(
            ReplyStart {
                first,
                rest,
                kind,
                limits: dispatcher.limits,
                clock: dispatcher.clock,
                abort: dispatcher.abort.aborted(),
                stream,
            },
            guard,
        )),
    };
    reply::with_head(head, body)
}
