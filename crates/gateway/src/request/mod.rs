//! The request path.
//!
//! `accept` (route, limits, key, body) -> `preprocess` (hooks, the model's name) -> `reply_cache`
//! (a cached or coalesced reply) -> `translate` (API dialects) -> `tokenization` (the prompt, as
//! tokens or as text) -> loop { `decide` (the target) -> `dispatch` (one attempt) } -> `relay` (the
//! worker's bytes) -> `record` (one outcome, load freed, receipt). This file has the first three;
//! [`generation`] lists the others.
//!
//! **Invariant**: every request with a route ends in exactly one drop of a
//! [`record::RequestGuard`], on every path.
//!
//! A stage that few requests need is awaited on the heap (`Box::pin`): the state of a request has
//! room for the largest stage that it may be in, and moves as a whole.

pub(crate) mod accept;
pub(crate) mod affinity;
pub(crate) mod attempt_failure;
pub(crate) mod body_budget;
mod candidates;
pub(crate) mod clusters;
pub(crate) mod compat_headers;
mod conversation;
pub(crate) mod cors;
mod count_tokens;
pub(crate) mod decide;
pub(crate) mod delivery;
pub(crate) mod dispatch;
mod engine_priority;
mod error_text;
mod fetch;
mod form;
pub(crate) mod generation;
pub(crate) mod hedge;
pub(crate) mod hooks;
mod input_tokens;
mod key_check;
mod lmcache;
mod media_urls;
pub(crate) mod origin;
mod overrides;
mod path_id;
pub(crate) mod prefill;
pub(crate) mod preprocess;
pub(crate) mod queue_wait;
mod realtime;
pub(crate) mod receipt;
pub(crate) mod record;
pub(crate) mod relay;
pub(crate) mod reply;
pub(crate) mod reply_body;
pub(crate) mod reply_cache;
mod retry_state;
mod retry_step;
mod rights;
pub(crate) mod route_api;
mod salt;
pub(crate) mod send;
mod slo;
mod stored_response;
#[cfg(test)]
pub(crate) mod test_gateway;
#[cfg(test)]
pub(crate) mod test_support;
#[cfg(test)]
mod tests;
mod tokenize_api;
pub(crate) mod translate;
mod upstream_request;

use std::{panic::AssertUnwindSafe, sync::Arc};

use dialect::{ApiError, Dialect, ErrorCode};
use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response, header::EXPECT};
use net::server::FramingError;
use proxy::RequestBody;

pub(crate) use self::accept::RequestSender;
use self::{
    accept::{AcceptedRequest, Arrival, RequestHead},
    cors::AllowedPage,
    record::RequestGuard,
    reply::refused,
    reply_body::{GuardedBody, ReplyBody},
};
use crate::{
    Gateway,
    routes::{ErrorShape, Route, RouteHandler},
};

/// Answers one request of any route.
pub(crate) async fn answer(
    gateway: Arc<Gateway>,
    request: Request<RequestBody>,
    sender: RequestSender,
) -> Response<GuardedBody> {
    let received = gateway.clock().now();
    let request_id = gateway.edge.ids.request_id(request.headers());
    let head_only = accept::is_head(request.method());
    let shape = ErrorShape::of(request.uri().path());
    let page = AllowedPage::of(&gateway.edge.admission.server, request.headers());
    let arrival = Arrival {
        request_id: Arc::clone(&request_id),
        received,
        sender,
    };
    let answering = AssertUnwindSafe(handle_route(&gateway, request, arrival)).catch_unwind();
    // A panic costs one request. Its guards have run: the load is freed, the receipt complete, the connection closed.
    let response = answering
        .await
        .unwrap_or_else(|_| reply::panicked(&gateway.recorder.metrics, shape, &request_id));
    let mut response = reply::with_request_id(shape, &request_id, response);
    if let Some(page) = page {
        page.allow(response.headers_mut());
    }
    finish(&gateway, response, head_only)
}

/// Refuses a request of which another server could see another end: nothing of its body is read, and
/// the connection closes, since the next request cannot be told from its body.
pub(crate) fn refuse_framing<B>(
    gateway: &Gateway,
    request: &Request<B>,
    error: FramingError,
) -> Response<GuardedBody> {
    let request_id = gateway.edge.ids.request_id(request.headers());
    let shape = ErrorShape::of(request.uri().path());
    let error = ApiError::new(ErrorCode::InvalidRequest, error.to_string());
    let response = reply::close_unless(false, reply::error(&error, shape, &request_id));
    let response = reply::with_request_id(shape, &request_id, response);
    finish(gateway, response, accept::is_head(request.method()))
}

/// Takes the body from the reply to a `HEAD`, and guards that of any other.
fn finish(
    gateway: &Gateway,
    response: Response<ReplyBody>,
    head_only: bool,
) -> Response<GuardedBody> {
    let response = if head_only {
        response.map(|_| ReplyBody::default())
    } else {
        response
    };
    let metrics = Arc::clone(&gateway.recorder.metrics);
    response.map(|body| GuardedBody::new(body, metrics))
}

fn probed(probe: &api::ProbeReply, request_id: &str) -> Response<ReplyBody> {
    reply::json(
        if probe.reasons.is_empty() { 200 } else { 503 },
        probe,
        request_id,
    )
}

/// Runs the stages before the handler of the route.
async fn handle_route(
    gateway: &Arc<Gateway>,
    request: Request<RequestBody>,
    arrival: Arrival,
) -> Response<ReplyBody> {
    supervision::panic_point("request");
    let (mut parts, mut body) = request.into_parts();
    let expects_continue = parts.headers.contains_key(EXPECT);
    if let Some(response) =
        cors::preflight(&gateway.edge.admission.server, &parts, &arrival.request_id)
    {
        return reply::close_unless(
            accept::drain_body(&mut body, expects_continue).await,
            response,
        );
    }
    let route = match accept::route(&parts) {
        Ok(route) => route,
        Err(error) => {
            let shape = ErrorShape::of(parts.uri.path());
            let error = reply::error(&error, shape, &arrival.request_id);
            let response = reply::with_allow(accept::allowed_methods(&parts), error);
            return reply::close_unless(
                accept::drain_body(&mut body, expects_continue).await,
                response,
            );
        }
    };
    let (request_id, received) = (Arc::clone(&arrival.request_id), arrival.received);
    let mut guard = RequestGuard::open(&gateway.recorder, route, request_id, received);
    guard.begin_trace(&mut parts.headers);
    let head = RequestHead {
        parts,
        route,
        arrival,
    };
    let accepted = accept(gateway, head, &mut body, &mut guard).await;
    guard.trace_stage("accept", Some(received));
    let mut call = match accepted {
        Ok(call) => call,
        Err(error) => {
            let response = gateway
                .reply_cache
                .mark_refused(route.endpoint, refused(guard, &error));
            return reply::close_unless(
                accept::drain_body(&mut body, expects_continue).await,
                response,
            );
        }
    };
    guard.timing().accept = gateway.clock().now().ms_since(received) * 1e3;
    let preprocessor = &gateway.edge.preprocessor;
    let started = guard.stage_start();
    let preprocessed = preprocessor.run(route, &mut call, guard.notes()).await;
    guard.trace_stage("preprocess", started);
    if let Err(error) = preprocessed {
        let response = refused(guard, &error);
        return gateway.reply_cache.mark_refused(route.endpoint, response);
    }
    let rest = call.rest.clone();
    let response = call_handler(gateway, route, call, guard).await;
    let drained = match rest.and_then(|rest| rest.take_unsent()) {
        Some(mut unsent) => accept::drain_body(&mut unsent, false).await,
        // Some routes read no body.
        None => accept::drain_body(&mut body, expects_continue).await,
    };
    reply::close_unless(drained, response)
}

/// Admits the request as one of its tenant, to whose end the guard holds its place, and reads it.
async fn accept(
    gateway: &Gateway,
    head: RequestHead,
    body: &mut RequestBody,
    guard: &mut RequestGuard,
) -> Result<AcceptedRequest, ApiError> {
    let admission = &gateway.edge.admission;
    let permit = admission.admit(&head).await?;
    let tenant = permit.as_ref().map(|permit| Arc::clone(permit.tenant()));
    guard.set_tenant(permit);
    admission.accept(head, tenant, body).await
}

/// Runs the handler of the route.
async fn call_handler(
    gateway: &Arc<Gateway>,
    route: &Route,
    call: AcceptedRequest,
    mut guard: Box<RequestGuard>,
) -> Response<ReplyBody> {
    let (id, catalog) = (&call.request_id, &gateway.edge.catalog);
    let rest = below(route, call.target.path());
    let result = match route.endpoint {
        RouteHandler::Generate(dialect) => return generate(gateway, call, dialect, guard).await,
        RouteHandler::GenerateAnew(dialect) => {
            return Box::pin(gateway.generation.run(call, dialect, guard)).await;
        }
        RouteHandler::Form => return Box::pin(form::form(gateway, call, guard)).await,
        RouteHandler::Realtime => return Box::pin(realtime::realtime(gateway, call, guard)).await,
        RouteHandler::StoredResponse => {
            let rest = rest.to_owned();
            let stored = stored_response::stored_response(gateway, call, rest, guard);
            return Box::pin(stored).await;
        }
        RouteHandler::InputTokens => {
            return Box::pin(input_tokens::input_tokens(gateway, call, guard)).await;
        }
        RouteHandler::CountTokens => {
            return Box::pin(count_tokens::count_tokens(gateway, call, guard)).await;
        }
        RouteHandler::Tokenize => {
            return Box::pin(tokenize_api::tokenize(gateway, call, guard)).await;
        }
        RouteHandler::Detokenize => {
            return Box::pin(tokenize_api::detokenize(gateway, call, guard)).await;
        }
        RouteHandler::Route => Box::pin(route_api::route(gateway, &call)).await,
        RouteHandler::PotentialLoads => Box::pin(route_api::potential_loads(gateway, &call)).await,
        RouteHandler::PrefillComplete => route_api::prefill_complete(gateway, &call, rest),
        RouteHandler::FreeReservation => route_api::free(gateway, &call, rest),
        RouteHandler::Models => {
            let list = Box::pin(catalog.list(call.tenant.as_deref())).await;
            Ok(reply::json(200, &list, id))
        }
        RouteHandler::Model => match rights::check_model(call.tenant.as_deref(), rest) {
            Ok(()) => {
                let found = Box::pin(catalog.one(rest)).await;
                found.map(|model| reply::json(200, &model, id))
            }
            Err(error) => Err(error),
        },
        RouteHandler::Health => {
            let health = gateway.health(gateway.edge.admission.may_read_names(&call));
            Ok(reply::json(200, &health, id))
        }
        RouteHandler::Live => Ok(probed(&gateway.live(), id)),
        RouteHandler::Ready => Ok(probed(&gateway.ready(), id)),
    };
    match result {
        Ok(response) => {
            guard.record_passthrough(response.status().as_u16());
            response
        }
        Err(error) => refused(guard, &error),
    }
}

/// Answers a generation: from the reply cache, else through the stages of [`generation`].
async fn generate(
    gateway: &Arc<Gateway>,
    call: AcceptedRequest,
    dialect: Dialect,
    guard: Box<RequestGuard>,
) -> Response<ReplyBody> {
    let owner = Arc::clone(gateway);
    // On the heap: this is the larger part of a request's state and would move with every future
    // around it.
    let send = move |call, guard| -> BoxFuture<'static, Response<ReplyBody>> {
        Box::pin(async move { owner.generation.run(call, dialect, guard).await })
    };
    gateway.reply_cache.answer(call, dialect, guard, send).await
}

/// Returns the part of a path below its route.
fn below<'a>(route: &Route, path: &'a str) -> &'a str {
    path.strip_prefix(route.path).unwrap_or_default()
}
