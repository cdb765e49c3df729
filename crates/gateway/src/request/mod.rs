//! The request path: one function that lists the stages, and one file for each stage.
//!
//! `accept` (route, limits, key, body) -> `preprocess` (hooks, the model's name) -> `reply_cache`
//! (a cached or coalesced reply) -> `tokenization` (the prompt, as tokens or as text) -> loop {
//! `decide` (the target) -> `prefill` (if another worker computes the prompt) -> `dispatch` (one
//! attempt) } -> `relay` (the worker's bytes) -> `record` (one outcome, load freed, receipt).
//!
//! **Invariant**: every request with a route ends in exactly one drop of a
//! [`record::RequestGuard`], on every path.

mod accept;
mod affinity;
mod body_budget;
mod buffered_body;
mod clusters;
mod compat_headers;
mod count_limits;
mod count_tokens;
mod decide;
mod dispatch;
mod engine_priority;
mod guarded_body;
mod hedge;
mod hooks;
mod lmcache;
mod prefill;
mod prefix_expectation;
mod preprocess;
mod queue_wait;
mod receipt;
mod record;
mod relay;
mod reply;
mod reply_cache;
mod retry_state;
mod route_api;
mod routing_notes;
mod session;
mod tokenize_api;
mod translate;

use std::{panic::AssertUnwindSafe, sync::Arc};

use dialect::{ApiError, Dialect, ErrorCode};
use fleet::ModelView;
use futures_util::FutureExt;
use http::{Request, Response, header::EXPECT};
use kv_blocks::Moment;
use proxy::RequestBody;
use routing::{Pin, ReplyMode, receipt::AttemptClass};
use tokenization::{PromptInput, TokenizedPrompt};

pub(crate) use body_budget::BodyBudget;
pub(crate) use clusters::Clusters;
pub use clusters::{Cluster, ClusterSettings};
pub use compat_headers::ReplyHeaders;
pub(crate) use dispatch::no_worker;
pub(crate) use guarded_body::GuardedBody;
pub(crate) use hedge::results as hedge_results;
pub use hooks::HookSettings;
pub(crate) use hooks::Hooks;
pub(crate) use prefill::PrefillContext;
pub use prefill::{Connector, Disaggregation};
pub use queue_wait::WaitLimits;
pub(crate) use record::{RequestGuard, Selection};
pub(crate) use relay::StreamLimits;
pub(crate) use reply::ReplyBody;
pub(crate) use reply_cache::{FillingBody, SimilarQuery};
pub use translate::RewriteSettings;

use self::{
    accept::AcceptedRequest,
    affinity::AffinityKeys,
    clusters::ClusterMembership,
    decide::{PlacedAttempt, PlacementRequest},
    dispatch::{BodyContent, FinalError},
    prefill::{Handover, LegsOutcome, PrefillDecodeLegs, RequestPolicies},
    prefix_expectation::PrefixExpectation,
    queue_wait::{Rejection, WaitRecord},
    receipt::RequestFacts,
    relay::{ReplyRelay, ReplyStart},
    retry_state::RetryState,
    translate::{ReplyContext, RequestTranslator, StreamTranslator},
};
use crate::{
    Gateway,
    health::ProbeResponse,
    routes::{ErrorShape, Route, RouteHandler},
};

/// Answers one request of any route.
pub(crate) async fn answer(
    gateway: Arc<Gateway>,
    request: Request<RequestBody>,
) -> Response<GuardedBody> {
    let received = gateway.clock.now();
    let request_id: Arc<str> = gateway.ids.request_id(request.headers()).into();
    let head_only = accept::is_head(request.method());
    let shape = ErrorShape::of(request.uri().path());
    let answering = AssertUnwindSafe(handle_route(
        &gateway,
        request,
        Arc::clone(&request_id),
        received,
    ))
    .catch_unwind();
    // A panic costs one request. Its guards have run: load, receipt and connection are settled.
    let response = answering
        .await
        .unwrap_or_else(|_| panicked(&gateway, shape, &request_id));
    let response = reply::with_request_id(shape, &request_id, response);
    let response = if head_only {
        response.map(|_| ReplyBody::empty())
    } else {
        response
    };
    response.map(|body| GuardedBody::new(body, gateway))
}

fn probed(probe: &ProbeResponse, request_id: &str) -> Response<ReplyBody> {
    reply::json(
        if probe.reasons.is_empty() { 200 } else { 503 },
        probe,
        request_id,
    )
}

fn panicked(gateway: &Gateway, shape: ErrorShape, request_id: &str) -> Response<ReplyBody> {
    gateway.metrics.panics.inc();
    let error = ApiError::new(
        ErrorCode::Internal,
        "the router failed on this request; see its log",
    );
    reply::error(&error, shape, request_id)
}

async fn handle_route(
    gateway: &Arc<Gateway>,
    request: Request<RequestBody>,
    request_id: Arc<str>,
    received: Moment,
) -> Response<ReplyBody> {
    supervision::panic_point("request");
    let (parts, mut body) = request.into_parts();
    let asks_first = parts.headers.contains_key(EXPECT);
    let route = match accept::route(&parts) {
        Ok(route) => route,
        Err(error) => {
            let error = reply::error(&error, ErrorShape::of(parts.uri.path()), &request_id);
            let response = reply::with_allow(accept::allowed_methods(&parts), error);
            return reply::close_unless(accept::drain_body(&mut body, asks_first).await, response);
        }
    };
    let mut settle = RequestGuard::open(gateway, route, Arc::clone(&request_id), received);
    let mut call = match accept::accept(
        gateway,
        parts,
        &mut body,
        route,
        Arc::clone(&request_id),
        received,
    )
    .await
    {
        Ok(call) => call,
        Err(error) => {
            let response = refused(settle, &error);
            return reply::close_unless(accept::drain_body(&mut body, asks_first).await, response);
        }
    };
    settle.timing().accept = gateway.clock.now().ms_since(received) * 1e3;
    if let Err(error) = preprocess::preprocess(gateway, route, &mut call, &mut settle).await {
        return refused(settle, &error);
    }
    let result = match route.endpoint {
        RouteHandler::Generate(dialect) => {
            return reply_cache::generate(gateway, call, dialect, settle).await;
        }
        RouteHandler::CountTokens => {
            return count_tokens::count_tokens(gateway, call, settle).await;
        }
        RouteHandler::Tokenize => return tokenize_api::tokenize(gateway, call, settle).await,
        RouteHandler::Detokenize => return tokenize_api::detokenize(gateway, call, settle).await,
        RouteHandler::Route => route_api::route(gateway, &call).await,
        RouteHandler::PotentialLoads => route_api::potential_loads(gateway, &call).await,
        RouteHandler::PrefillComplete => {
            route_api::prefill_complete(gateway, &call, below(route, call.target.path()))
        }
        RouteHandler::FreeReservation => {
            route_api::free(gateway, &call, below(route, call.target.path()))
        }
        RouteHandler::Models => {
            gateway.fresh_model_list().await;
            Ok(reply::json(200, &gateway.model_list(), &request_id))
        }
        RouteHandler::Model => {
            gateway.fresh_model_list().await;
            gateway
                .one_model(below(route, call.target.path()))
                .map(|model| reply::json(200, &model, &request_id))
        }
        RouteHandler::Health => Ok(reply::json(200, &gateway.health(), &request_id)),
        RouteHandler::Live => Ok(probed(&gateway.live(), &request_id)),
        RouteHandler::Ready => Ok(probed(&gateway.ready(), &request_id)),
    };
    match result {
        Ok(response) => {
            settle.record_passthrough(response.status().as_u16());
            response
        }
        Err(error) => refused(settle, &error),
    }
}

/// Returns the part of a path below its route.
fn below<'a>(route: &Route, path: &'a str) -> &'a str {
    path.strip_prefix(route.path).unwrap_or_default()
}

/// Runs the stages of a generation.
async fn generate(
    gateway: &Arc<Gateway>,
    mut call: AcceptedRequest,
    dialect: Dialect,
    mut settle: RequestGuard,
) -> Response<ReplyBody> {
    let wording = match RequestTranslator::of(gateway, dialect, &mut call).await {
        Ok(wording) => wording,
        Err(error) => return refused(settle, &error),
    };
    let asked_in = dialect;
    let (dialect, body) = wording.routing_body(&call);
    let view = match wording.request_view(dialect, &body) {
        Ok(view) => view,
        Err(error) => return refused(settle, &error),
    };
    let allowed = prefill::check_transfer_fields(&view)
        .and_then(|()| count_limits::check_counts(&gateway.limits.counts, asked_in, &view));
    if let Err(error) = allowed {
        return refused(settle, &error);
    }
    let mut wait = WaitRecord::new(
        call.body.bytes().len(),
        call.received + gateway.rules.timeout,
    );
    let found = queue_wait::model(gateway, &view.model, &mut wait)
        .await
        .and_then(|model| {
            wording.check_supported(&model)?;
            let pin = decide::pin(
                &gateway.fleet.snapshot(),
                call.overrides.worker.as_deref(),
                "x-warmroute-worker",
            )?;
            Ok((
                model,
                pin.or_else(|| wording.response_worker(gateway, call.received)),
            ))
        });
    let (model, pin) = match found {
        Ok(found) => found,
        Err(error) => return refused(settle, &error),
    };
    let (prompt, cluster) = tokio::join!(
        gateway.tokenization.run(
            &model.artefacts,
            PromptInput {
                dialect,
                bytes: &body,
                view: &view,
                deadline: call.received + gateway.rules.timeout,
            },
        ),
        clusters::of(gateway, &call.headers, &view),
    );
    settle.timing().render = prompt.render_us;
    settle.timing().tokenize = prompt.tokenize_us;
    let note = cluster.as_ref().map(ClusterMembership::note);
    settle.set_request_facts(RequestFacts {
        cluster: note,
        ..RequestFacts::of(&view, &model, call.overrides.priority, &prompt)
    });
    settle.set_prefix_expectation(PrefixExpectation::of(dialect, &view, &prompt));
    if wording.keeps_state {
        settle.mark_response_stored();
    }
    settle.prompt(prompt.blocks.as_ref());
    settle.text(&view);
    gateway.metrics.record_prompt_source(prompt.source.as_str());
    let policies = RequestPolicies::of(gateway, &call.overrides, &model);
    let ties = affinity::of(gateway, policies, &call.headers, call.body.bytes(), &view).await;
    if let Some(cluster) = &cluster {
        cluster.add_header(&mut call.headers);
    }
    let lmcache = lmcache::of(
        gateway,
        policies,
        &model,
        &prompt,
        lmcache::CandidateChoice::of(pin),
    )
    .await;
    let (prompt_is_exact, prompt_tokens) = (prompt.source.is_exact(), prompt.tokens);
    let errand = RoutedRequest {
        model,
        prompt,
        affinity: ties
            .with_cluster(cluster)
            .with_prefix_memory(gateway, &view)
            .with_lmcache(lmcache),
        salt: view.cache_salt.as_deref().map(Arc::from),
        expected_output_tokens: view.max_tokens,
        answer: if view.stream {
            ReplyMode::Streamed
        } else {
            ReplyMode::Whole
        },
        pin,
        handover: if wording.can_split() {
            Handover::of(&view)
        } else {
            Handover::without_split()
        },
        own_priority: view.priority.is_some(),
        reply_context: ReplyContext {
            model: Arc::from(&*view.model),
            prompt_tokens: if prompt_is_exact { prompt_tokens } else { 0 },
            include_usage: view.include_usage,
        },
        translator: wording,
    };
    drop(view);
    // On the heap: this is the larger part of a request's state and would move with every future
    // around it.
    Box::pin(place_and_send(gateway, call, errand, wait, settle)).await
}

/// Everything that the stages after tokenization need beside the client's bytes.
#[derive(Debug)]
struct RoutedRequest {
    model: Arc<ModelView>,
    prompt: TokenizedPrompt,
    affinity: AffinityKeys,
    salt: Option<Arc<str>>,
    expected_output_tokens: Option<u32>,
    answer: ReplyMode,
    pin: Option<Pin>,
    handover: Handover,
    /// The client sets the engine priority itself.
    own_priority: bool,
    translator: RequestTranslator,
    reply_context: ReplyContext,
}

/// Runs the stages from the decision on.
async fn place_and_send(
    gateway: &Arc<Gateway>,
    call: AcceptedRequest,
    errand: RoutedRequest,
    mut wait: WaitRecord,
    mut settle: RequestGuard,
) -> Response<ReplyBody> {
    let RoutedRequest {
        mut model,
        prompt,
        affinity: ties,
        salt,
        expected_output_tokens,
        answer,
        pin,
        mut handover,
        ..
    } = errand;
    let RoutedRequest {
        own_priority,
        translator: wording,
        reply_context: asked,
        ..
    } = errand;
    let deadline = call.received + gateway.rules.timeout;
    let mut tries = RetryState::default();
    loop {
        let placement = PlacementRequest {
            overrides: &call.overrides,
            prompt: &prompt,
            affinity: &ties,
            salt: salt.clone(),
            expected_output_tokens,
            answer,
            pin,
            handover: &handover,
            failed: &tries.excluded,
            spoken: wording.spoken,
            worded_for: None,
        };
        // A retry has already waited, unless no worker was left for it; a request without a prompt
        // asks for no work worth waiting for.
        let may_wait = (tries.last.is_none() || tries.waits_for_anybody)
            && !matches!(handover, Handover::NoPrompt);
        let placed = queue_wait::place(gateway, &mut model, &placement, may_wait, &mut wait).await;
        settle.record_wait(wait.receipt_wait());
        let PlacedAttempt {
            decision,
            lease,
            prefill,
            engine_priority: turn,
        } = match placed {
            Ok(placed) => placed,
            Err(Rejection { .. }) if pin.is_none() && tries.may_wait_for_worker(gateway) => {
                continue;
            }
            Err(Rejection { refusal, error }) => {
                settle.record_refusal(refusal);
                return last_word(
                    settle,
                    tries
                        .last
                        .map_or_else(|| FinalError::Error(error), |it| it.reply),
                );
            }
        };
        let target = lease.target();
        settle.record_placement(decision, lease, prefill.clone());
        let found = |target| {
            model
                .candidates
                .iter()
                .find(|candidate| candidate.target == target)
        };
        let Some(worker) = found(target) else {
            return refused(settle, &dispatch::no_worker());
        };
        let said = match wording
            .upstream_request(gateway, &call, &worker.worker, prefill.is_some(), &asked)
            .await
        {
            Ok(said) => said,
            Err(error) => return refused(settle, &error),
        };
        let (call, back) = (&*said.call, said.back);
        settle.record_rewrite(said.rewrites);
        if !said.is_openai {
            settle.mark_foreign_count();
        }
        let mut answering = hedge::HedgeTarget {
            worker: Arc::clone(&worker.worker),
            target,
        };
        let mut also_failed = None;
        let legs = prefill.and_then(|leg| {
            let (decode, prefill) = (&*worker.worker, &*found(leg.target)?.worker);
            Some(PrefillDecodeLegs {
                gateway,
                call,
                decode,
                target,
                prefill,
                leg,
                deadline,
            })
        });
        let sent = match legs {
            None => {
                let told = !own_priority
                    && said.is_openai
                    && engine_priority::is_sent_to(gateway, &worker.worker);
                let with_turn = told
                    .then(|| engine_priority::add_priority(call.body.bytes(), turn))
                    .flatten();
                // A retry may go to an engine that gets no priority.
                settle.record_rewrite(with_turn.iter().map(|_| engine_priority::REWRITE).collect());
                let body = with_turn.unwrap_or_else(|| call.body.bytes().clone());
                let answered = {
                    let may_ask_two = !wording.keeps_state;
                    let parts = (call, body);
                    hedge::attempt(
                        gateway,
                        parts,
                        may_ask_two,
                        &model,
                        &placement,
                        answering,
                        deadline,
                        &mut settle,
                    )
                    .await
                };
                answering = answered.by;
                also_failed = answered.failed;
                LegsOutcome::Decode(Box::new(answered.result))
            }
            Some(legs) => prefill::send(&legs, &mut settle).await,
        };
        let answer = match sent {
            LegsOutcome::Decode(answer) => *answer,
            LegsOutcome::PrefillFailed => {
                handover = settle.without_prefill();
                continue;
            }
        };
        let answer = match answer {
            Ok(committed) => {
                back.reply(committed, deadline.since(gateway.clock.now()))
                    .await
            }
            Err(failure) => Err(back.failure(failure)),
        };
        let failure = match answer {
            Ok(committed) => {
                if committed.head.status.is_success() {
                    ties.record_served(gateway, answering.target.worker);
                }
                return relay_reply(gateway, committed, back.stream(), settle);
            }
            Err(failure) => failure,
        };
        settle.fail_attempt(&failure);
        // An engine that stores responses may have begun to compute this one: after C1 a retry
        // could compute and store it twice.
        if wording.keeps_state && failure.class == Some(AttemptClass::C1) {
            return last_word(settle, failure.reply);
        }
        // A pin that names the prefill worker leaves the decode worker open.
        let last = answering.target.worker;
        let pinned = pin.is_some_and(|pin| pin.worker == last);
        if let Some(other) = also_failed {
            tries.record_hedge_failure(other);
        }
        if !tries
            .next_attempt(gateway, &model, last, pinned, failure, &mut wait)
            .await
        {
            return last_word(
                settle,
                tries
                    .last
                    .map_or_else(|| FinalError::Error(dispatch::no_worker()), |it| it.reply),
            );
        }
        // The fleet may have changed since: the new snapshot includes the effect of this attempt.
        if let Some(now) = gateway.fleet.snapshot().model(&model.id) {
            model = Arc::clone(now);
        }
    }
}

/// Commits to a reply: sends its head; the body carries the rest of the request with it.
fn relay_reply(
    gateway: &Arc<Gateway>,
    committed: dispatch::CommittedReply,
    stream: Option<StreamTranslator>,
    mut settle: RequestGuard,
) -> Response<ReplyBody> {
    let dispatch::CommittedReply { head, content } = committed;
    settle.commit(head.status.as_u16(), &content);
    let is_empty = matches!(&content, BodyContent::Whole(bytes) if bytes.is_empty());
    let empty_stream =
        is_empty && settle.expected_ending().is_some() && dispatch::is_event_stream(&head.headers);
    let head = reply::head(&head, &settle);
    let body = match content {
        BodyContent::Whole(bytes) => {
            if empty_stream {
                settle.record_incomplete();
            }
            if let Some(chunk) = dialect::StreamChunk::read(&bytes) {
                settle.record_chunk(&chunk);
            }
            ReplyBody::whole(bytes, settle)
        }
        BodyContent::Begun { first, rest, kind } => ReplyBody::Relay(Box::new(ReplyRelay::new(
            ReplyStart {
                first,
                rest,
                kind,
                limits: gateway.rules.stream,
                clock: gateway.clock,
                cutting: gateway.cut.aborted(),
                stream,
            },
            settle,
        ))),
    };
    reply::with_head(head, body)
}

/// Answers the client with an error of the router.
fn refused(mut settle: RequestGuard, error: &ApiError) -> Response<ReplyBody> {
    settle.record_own_error(error);
    let mut response = reply::error(error, settle.error_shape(), settle.request_id());
    reply::add_routing_headers(response.headers_mut(), &settle);
    response
}

/// Answers the client with the last failure when no further attempt follows.
fn last_word(mut settle: RequestGuard, word: FinalError) -> Response<ReplyBody> {
    match word {
        FinalError::Error(error) => refused(settle, &error),
        FinalError::Pass(head, bytes) => {
            settle.record_passthrough(head.status.as_u16());
            let head = reply::head(&head, &settle);
            reply::with_head(head, ReplyBody::whole(bytes, settle))
        }
    }
}
