//! The way of a request: one function that reads as the list of stages, and one file for each.
//!
//! `accept` (route, limits, key, body) -> `before` (hooks, the model's name) -> `cached` (a reply that is there already) -> `identify` (the prompt, in tokens or as text) -> loop { `decide` (who) ->
//! `prefill` (if another worker computes the prompt) -> `dispatch` (one attempt) } -> `relay` (the worker's bytes) -> `settle` (one outcome, load freed, receipt).
//!
//! **Invariant**: every request with a route ends in exactly one [`settle::Settle`] being dropped, on every path.

mod accept;
mod affinity;
mod ask;
mod before;
mod body_budget;
mod cached;
mod clusters;
mod compat_headers;
mod count_tokens;
mod counts;
mod decide;
mod dispatch;
mod guarded_body;
mod headers;
mod hedge;
mod held_body;
mod hold;
mod hooks;
mod identify;
mod lmcache;
mod looked_up;
mod prefill;
mod receipt;
mod relay;
mod reply;
mod route_api;
mod session;
mod settle;
mod tokenize;
mod told;
mod tries;
mod turn;
mod wording;

use std::{panic::AssertUnwindSafe, sync::Arc};

use dialect::{ApiError, Dialect, ErrorCode};
use fleet::ModelView;
use futures_util::FutureExt;
use http::{Request, Response, header::EXPECT};
use hyper::body::Incoming;
use kv_blocks::{Moment, WorkerId};
use routing::{Answer, Pin, receipt::AttemptClass};

pub(crate) use ask::{Question, Unanswered, ask};
pub(crate) use body_budget::BodyBudget;
pub(crate) use cached::{Kept, Sought};
pub(crate) use clusters::Clusters;
pub use clusters::{Cluster, ClusterSettings};
pub use compat_headers::ReplyHeaders;
pub(crate) use dispatch::no_worker;
pub(crate) use guarded_body::GuardedBody;
pub(crate) use hedge::results as hedge_results;
pub use hold::WaitLimits;
pub use hooks::HookSettings;
pub(crate) use hooks::Hooks;
pub(crate) use identify::{EngineTokens, Identify, ToldTokens};
pub use identify::{SharedTokens, SharedTokensError, TokenCache};
pub(crate) use prefill::Prefills;
pub use prefill::{Connector, Disaggregation};
pub(crate) use relay::StreamLimits;
pub(crate) use reply::ReplyBody;
pub(crate) use settle::{Settle, Won};
pub use wording::Rewriting;

use self::{
    accept::Call,
    affinity::Ties,
    clusters::Membership,
    decide::{Placed, Placement},
    dispatch::{Content, LastWord},
    hold::{TurnedAway, Wait},
    looked_up::LookedUp,
    prefill::{Handover, Legs, Policies, Sent},
    receipt::About,
    relay::{Begun, Relay},
    tries::Tries,
    wording::{Asked, Wording, Words},
};
use crate::{
    Gateway,
    health::Probe,
    routes::{Endpoint, Route, Shape},
};

/// Answers one request, whatever it is.
pub(crate) async fn answer(
    gateway: Arc<Gateway>,
    request: Request<Incoming>,
) -> Response<GuardedBody> {
    let received = gateway.clock.now();
    let request_id: Arc<str> = gateway.ids.request_id(request.headers()).into();
    let head_only = accept::is_head(request.method());
    let shape = Shape::of(request.uri().path());
    let answering = AssertUnwindSafe(routed(&gateway, request, Arc::clone(&request_id), received))
        .catch_unwind();
    // A panic costs one request. Its guards have run: load, receipt and connection are settled.
    let response = answering
        .await
        .unwrap_or_else(|_| panicked(&gateway, shape, &request_id));
    let response = reply::identified(shape, &request_id, response);
    let response = if head_only {
        response.map(|_| ReplyBody::empty())
    } else {
        response
    };
    response.map(|body| GuardedBody::new(body, gateway))
}

fn probed(probe: &Probe, request_id: &str) -> Response<ReplyBody> {
    reply::json(
        if probe.reasons.is_empty() { 200 } else { 503 },
        probe,
        request_id,
    )
}

fn panicked(gateway: &Gateway, shape: Shape, request_id: &str) -> Response<ReplyBody> {
    gateway.metrics.panics.inc();
    let error = ApiError::new(
        ErrorCode::Internal,
        "the router failed on this request; see its log",
    );
    reply::error(&error, shape, request_id)
}

async fn routed(
    gateway: &Arc<Gateway>,
    request: Request<Incoming>,
    request_id: Arc<str>,
    received: Moment,
) -> Response<ReplyBody> {
    supervision::panic_point("request");
    let (parts, mut body) = request.into_parts();
    let asks_first = parts.headers.contains_key(EXPECT);
    let route = match accept::route(&parts) {
        Ok(route) => route,
        Err(error) => {
            let error = reply::error(&error, Shape::of(parts.uri.path()), &request_id);
            let response = reply::allowing(accept::allowed(&parts), error);
            return reply::closing_unless(accept::drained(&mut body, asks_first).await, response);
        }
    };
    let mut settle = Settle::open(gateway, route, Arc::clone(&request_id), received);
    let mut call = match accept::call(
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
            return reply::closing_unless(accept::drained(&mut body, asks_first).await, response);
        }
    };
    settle.timing().accept = gateway.clock.now().ms_since(received) * 1e3;
    if let Err(error) = before::routing(gateway, route, &mut call, &mut settle).await {
        return refused(settle, &error);
    }
    let result = match route.endpoint {
        Endpoint::Generate(dialect) => {
            return cached::generate(gateway, call, dialect, settle).await;
        }
        Endpoint::CountTokens => return count_tokens::count_tokens(gateway, call, settle).await,
        Endpoint::Tokenize => return tokenize::tokenize(gateway, call, settle).await,
        Endpoint::Detokenize => return tokenize::detokenize(gateway, call, settle).await,
        Endpoint::Route => route_api::route(gateway, &call).await,
        Endpoint::PotentialLoads => route_api::potential_loads(gateway, &call).await,
        Endpoint::PrefillComplete => {
            route_api::prefill_complete(gateway, &call, below(route, call.target.path()))
        }
        Endpoint::FreeReservation => {
            route_api::free(gateway, &call, below(route, call.target.path()))
        }
        Endpoint::Models => {
            gateway.fresh_model_list().await;
            Ok(reply::json(200, &gateway.model_list(), &request_id))
        }
        Endpoint::Model => {
            gateway.fresh_model_list().await;
            gateway
                .one_model(below(route, call.target.path()))
                .map(|model| reply::json(200, &model, &request_id))
        }
        Endpoint::Health => Ok(reply::json(200, &gateway.health(), &request_id)),
        Endpoint::Live => Ok(probed(&gateway.live(), &request_id)),
        Endpoint::Ready => Ok(probed(&gateway.ready(), &request_id)),
    };
    match result {
        Ok(response) => {
            settle.passed(response.status().as_u16());
            response
        }
        Err(error) => refused(settle, &error),
    }
}

/// What a path has below its route.
fn below<'a>(route: &Route, path: &'a str) -> &'a str {
    path.strip_prefix(route.path).unwrap_or_default()
}

/// The stages of a generation.
async fn generate(
    gateway: &Arc<Gateway>,
    mut call: Call,
    dialect: Dialect,
    mut settle: Settle,
) -> Response<ReplyBody> {
    let wording = match Wording::of(gateway, dialect, &mut call).await {
        Ok(wording) => wording,
        Err(error) => return refused(settle, &error),
    };
    let asked_in = dialect;
    let (dialect, body) = wording.routed_by(&call);
    let view = match wording.seen(dialect, &body) {
        Ok(view) => view,
        Err(error) => return refused(settle, &error),
    };
    let allowed = prefill::transfer_fields_are_ours(&view)
        .and_then(|()| counts::are_allowed(&gateway.limits.counts, asked_in, &view));
    if let Err(error) = allowed {
        return refused(settle, &error);
    }
    let mut wait = Wait::new(
        call.body.bytes().len(),
        call.received + gateway.rules.timeout,
    );
    let found = hold::model(gateway, &view.model, &mut wait)
        .await
        .and_then(|model| {
            wording.is_spoken(&model)?;
            let pin = decide::pin(
                &gateway.fleet.snapshot(),
                call.overrides.worker.as_deref(),
                "x-warmroute-worker",
            )?;
            Ok((model, pin.or_else(|| wording.home(gateway, call.received))))
        });
    let (model, pin) = match found {
        Ok(found) => found,
        Err(error) => return refused(settle, &error),
    };
    let (prompt, cluster) = tokio::join!(
        gateway.identify.run(
            &model.artefacts,
            dialect,
            &body,
            &view,
            call.received + gateway.rules.timeout
        ),
        clusters::of(gateway, &call.headers, &view),
    );
    settle.timing().render = prompt.render_us;
    settle.timing().tokenize = prompt.tokenize_us;
    let note = cluster.as_ref().map(Membership::note);
    settle.about(About {
        cluster: note,
        ..About::of(&view, &model, call.overrides.priority, &prompt)
    });
    settle.looked_up(LookedUp::of(dialect, &view, &prompt));
    if wording.keeps_state {
        settle.will_be_kept();
    }
    settle.prompt(prompt.blocks.as_ref());
    settle.text(&view);
    gateway.metrics.identified(prompt.source.as_str());
    let policies = Policies::of(gateway, &call.overrides, &model);
    let ties = affinity::of(gateway, policies, &call.headers, call.body.bytes(), &view).await;
    if let Some(cluster) = &cluster {
        cluster.tell(&mut call.headers);
    }
    let lmcache = lmcache::of(gateway, policies, &model, &prompt, lmcache::Choice::of(pin)).await;
    let (prompt_is_exact, prompt_tokens) = (prompt.source.is_exact(), prompt.tokens);
    let errand = Errand {
        model,
        prompt,
        ties: ties
            .in_cluster(cluster)
            .beginning(gateway, &view)
            .held_in(lmcache),
        salt: view.cache_salt.as_deref().map(Arc::from),
        expected_output_tokens: view.max_tokens,
        answer: if view.stream {
            Answer::Streamed
        } else {
            Answer::Whole
        },
        pin,
        handover: if wording.may_be_split() {
            Handover::of(&view)
        } else {
            Handover::unsplittable()
        },
        own_priority: view.priority.is_some(),
        asked: Asked {
            model: Arc::from(&*view.model),
            prompt_tokens: if prompt_is_exact { prompt_tokens } else { 0 },
            include_usage: view.include_usage,
        },
        wording,
    };
    drop(view);
    // On the heap: the larger part of a request's state, which would be moved with every future around it.
    Box::pin(carried(gateway, call, errand, wait, settle)).await
}

/// What is carried to a worker beside the client's bytes.
#[derive(Debug)]
struct Errand {
    model: Arc<ModelView>,
    prompt: identify::Identified,
    ties: Ties,
    salt: Option<Arc<str>>,
    expected_output_tokens: Option<u32>,
    answer: Answer,
    pin: Option<Pin>,
    handover: Handover,
    /// The client tells engines its place itself.
    own_priority: bool,
    wording: Wording,
    asked: Asked,
}

/// The stages from the decision on.
async fn carried(
    gateway: &Arc<Gateway>,
    call: Call,
    errand: Errand,
    mut wait: Wait,
    mut settle: Settle,
) -> Response<ReplyBody> {
    let Errand {
        mut model,
        prompt,
        ties,
        salt,
        expected_output_tokens,
        answer,
        pin,
        mut handover,
        ..
    } = errand;
    let Errand {
        own_priority,
        wording,
        asked,
        ..
    } = errand;
    let deadline = call.received + gateway.rules.timeout;
    let mut tries = Tries::default();
    loop {
        let placement = Placement {
            overrides: &call.overrides,
            prompt: &prompt,
            ties: &ties,
            salt: salt.clone(),
            expected_output_tokens,
            answer,
            pin,
            handover: &handover,
            failed: &tries.excluded,
            spoken: wording.spoken,
            worded_for: None,
        };
        // One that is tried again has waited, unless nobody was left to try it; and one without a prompt asks for no work worth waiting for.
        let may_wait = (tries.last.is_none() || tries.waits_for_anybody)
            && !matches!(handover, Handover::NoPrompt);
        let placed = hold::place(gateway, &mut model, &placement, may_wait, &mut wait).await;
        settle.waited(wait.told());
        let Placed {
            decision,
            lease,
            prefill,
            turn,
        } = match placed {
            Ok(placed) => placed,
            Err(TurnedAway { .. }) if pin.is_none() && tries.waits_after_all(gateway) => continue,
            Err(TurnedAway { refusal, error }) => {
                settle.refused(refusal);
                return last_word(
                    settle,
                    tries
                        .last
                        .map_or_else(|| LastWord::Error(error), |it| it.reply),
                );
            }
        };
        let target = lease.target();
        settle.placed(decision, lease, prefill.clone());
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
            .to(gateway, &call, &worker.worker, prefill.is_some(), &asked)
            .await
        {
            Ok(said) => said,
            Err(error) => return refused(settle, &error),
        };
        let (call, back) = (&*said.call, said.back);
        settle.rewrote(said.rewrites);
        if !said.is_openai {
            settle.counts_otherwise();
        }
        let mut answering = hedge::Asked {
            worker: Arc::clone(&worker.worker),
            target,
        };
        let mut also_failed = None;
        let legs = prefill.and_then(|leg| {
            let (decode, prefill) = (&*worker.worker, &*found(leg.target)?.worker);
            Some(Legs {
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
                let told = !own_priority && said.is_openai && turn::told(gateway, &worker.worker);
                let with_turn = told.then(|| turn::with(call.body.bytes(), turn)).flatten();
                // A retry may go to an engine that is not told.
                settle.rewrote(with_turn.iter().map(|_| turn::REWRITE).collect());
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
                Sent::Decode(Box::new(answered.result))
            }
            Some(legs) => prefill::send(&legs, &mut settle).await,
        };
        let answer = match sent {
            Sent::Decode(answer) => *answer,
            Sent::PrefillFailed => {
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
                    ties.served(gateway, answering.target.worker);
                }
                return relayed(
                    gateway,
                    committed,
                    answering.worker.id,
                    back.stream(),
                    settle,
                );
            }
            Err(failure) => failure,
        };
        settle.attempt_failed(&failure);
        // What an engine keeps it may have begun to compute: only one that has not seen the request may be asked then.
        if wording.keeps_state && failure.class == Some(AttemptClass::C1) {
            return last_word(settle, failure.reply);
        }
        // Who named the prefill worker left the other one open.
        let last = answering.target.worker;
        let pinned = pin.is_some_and(|pin| pin.worker == last);
        if let Some(other) = also_failed {
            tries.also(other);
        }
        if !tries
            .again(gateway, &model, last, pinned, failure, &mut wait)
            .await
        {
            return last_word(
                settle,
                tries
                    .last
                    .map_or_else(|| LastWord::Error(dispatch::no_worker()), |it| it.reply),
            );
        }
        // Workers may have gone or come back since: what was learned from this attempt is in the new snapshot.
        if let Some(now) = gateway.fleet.snapshot().model(&model.id) {
            model = Arc::clone(now);
        }
    }
}

/// Commits to a reply: its head goes out, and its body carries the rest of the request with it.
fn relayed(
    gateway: &Arc<Gateway>,
    committed: dispatch::Committed,
    worker: WorkerId,
    stream: Option<Words>,
    mut settle: Settle,
) -> Response<ReplyBody> {
    let dispatch::Committed { head, content } = committed;
    settle.committed(head.status.as_u16(), &content);
    let is_empty = matches!(&content, Content::Whole(bytes) if bytes.is_empty());
    let empty_stream =
        is_empty && settle.expected_ending().is_some() && dispatch::is_event_stream(&head.headers);
    let head = reply::head(&head, &settle);
    let body = match content {
        Content::Whole(bytes) => {
            if empty_stream {
                settle.unfinished();
            }
            if let Some(chunk) = dialect::Chunk::read(&bytes) {
                settle.note(&chunk);
            }
            ReplyBody::whole(bytes, settle)
        }
        Content::Begun {
            first,
            rest,
            connection,
            kind,
        } => ReplyBody::Relay(Box::new(Relay::new(
            Begun {
                first,
                rest,
                connection,
                kind,
                worker,
                limits: gateway.rules.stream,
                pools: gateway.pools.clone(),
                clock: gateway.clock,
                cutting: gateway.cut.thrown(),
                stream,
            },
            settle,
        ))),
    };
    reply::with_head(head, body)
}

/// The client gets an error of ours.
fn refused(mut settle: Settle, error: &ApiError) -> Response<ReplyBody> {
    settle.answered(error);
    let mut response = reply::error(error, settle.shape(), settle.request_id());
    reply::explain(response.headers_mut(), &settle);
    response
}

/// The client gets what was left when nothing more was tried.
fn last_word(mut settle: Settle, word: LastWord) -> Response<ReplyBody> {
    match word {
        LastWord::Error(error) => refused(settle, &error),
        LastWord::Pass(head, bytes) => {
            settle.passed(head.status.as_u16());
            let head = reply::head(&head, &settle);
            reply::with_head(head, ReplyBody::whole(bytes, settle))
        }
    }
}
