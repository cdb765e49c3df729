//! `POST /v1/route` and its sub-routes: the decision for a request, with an optional reservation.
//!
//! For programs that send requests themselves. The same stages as for a forwarded request find the
//! prompt and choose the target. Without a `request_id` the call changes no later decision; with
//! one, its load counts until the reservation ends. The process itself makes the same calls without
//! a connection: [`token_query`].

mod body;
mod token_query;

use std::sync::Arc;

use api::{PotentialLoad, PotentialLoads, Reservation, ReservationState, RouteReply};
use bytes::Bytes;
use dialect::{ApiError, ErrorCode};
use fleet::ModelView;
use http::{HeaderMap, Response};
use kv_blocks::Moment;
use routing::{
    Decision, Pin, ReplyMode, SloTargets, Winner,
    receipt::{QueueWait, Receipt, RouterAnswer, RouterTiming},
};
use tenants::Tenant;
use tokenization::{PromptInput, TokenizedPrompt};

use self::body::RouteBody;
pub use self::token_query::{BestWorker, PrefixMatch, TokenQuery};
use super::{
    accept::AcceptedRequest,
    affinity::{AffinityInput, SearchedPrompt},
    clusters::ClusterMembership,
    decide::{self, PlacementOutcome, PlacementRequest, RoutingFacts},
    generation::GenerationStages,
    lmcache::CandidateChoice,
    overrides::HeaderOverrides,
    path_id::percent_decoded,
    prefill::Handover,
    queue_wait,
    receipt::{DecisionFacts, RequestFacts, tenant_name},
    reply,
    reply_body::ReplyBody,
    translate::ApiSupport,
};
use crate::{
    Gateway, errors,
    lease::PlacedAttempt,
    reservations::{CallTime, OpenReservation, ReservationId, ReservationSize},
};

/// The route's path, as receipts name it.
const ROUTE: &str = "/v1/route";
/// Last part of the path that reports a reservation's prompt as computed.
const PREFILL_COMPLETE: &str = "/prefill_complete";

/// `POST /v1/route`.
pub(super) async fn route(
    gateway: &Arc<Gateway>,
    call: &AcceptedRequest,
) -> Result<Response<ReplyBody>, ApiError> {
    let dry_run_request = DryRunRequest::read(gateway, call).await?;
    let answer = dry_run_request.answer(&call.request_id)?;
    Ok(reply::json(200, &answer.reply(), &call.request_id))
}

/// `POST /v1/route/potential_loads`.
pub(super) async fn potential_loads(
    gateway: &Arc<Gateway>,
    call: &AcceptedRequest,
) -> Result<Response<ReplyBody>, ApiError> {
    let dry_run_request = DryRunRequest::read(gateway, call).await?;
    let answer = PotentialLoads {
        loads: dry_run_request.potential_loads()?,
    };
    Ok(reply::json(200, &answer, &call.request_id))
}

/// `POST /v1/route/{request_id}/prefill_complete`.
pub(super) fn prefill_complete(
    gateway: &Gateway,
    call: &AcceptedRequest,
    rest: &str,
) -> Result<Response<ReplyBody>, ApiError> {
    let Some(id) = rest.strip_suffix(PREFILL_COMPLETE) else {
        let message = format!(
            "no such route: a reservation takes POST {ROUTE}/ID{PREFILL_COMPLETE} and DELETE {ROUTE}/ID"
        );
        return Err(ApiError::new(ErrorCode::UnknownRoute, message));
    };
    let id = id_in_path(id)?;
    let at = CallTime::now(gateway.clock());
    let owned = ReservationId::of(&tenant_name(call.tenant.as_deref()), &id);
    gateway.reservations.prefill_complete(&owned, at)?;
    Ok(reservation_state(id, "decoding", call))
}

/// `DELETE /v1/route/{request_id}`.
pub(super) fn free(
    gateway: &Gateway,
    call: &AcceptedRequest,
    rest: &str,
) -> Result<Response<ReplyBody>, ApiError> {
    let id = id_in_path(rest)?;
    let owned = ReservationId::of(&tenant_name(call.tenant.as_deref()), &id);
    gateway
        .reservations
        .free(&owned, CallTime::now(gateway.clock()))?;
    Ok(reservation_state(id, "freed", call))
}

fn reservation_state(
    request_id: String,
    state: &'static str,
    call: &AcceptedRequest,
) -> Response<ReplyBody> {
    let state = ReservationState {
        request_id,
        state: state.into(),
    };
    reply::json(200, &state, &call.request_id)
}

impl Gateway {
    /// Returns the decision for the request in `body`, a body of `/v1/route`. The call changes no
    /// later decision; an engine may be called to tokenize the prompt.
    ///
    /// # Errors
    ///
    /// The errors of the route; also a body that asks for a reservation.
    pub async fn dry_run(self: &Arc<Self>, body: Bytes) -> Result<Receipt, ApiError> {
        let route_body = body::read(&body, &HeaderOverrides::default())?;
        if route_body.request_id.is_some() {
            let message = "request_id asks for a reservation: those are made on the data listener";
            return Err(ApiError::new(ErrorCode::InvalidRequest, message).param("request_id"));
        }
        let source = RouteCall {
            bytes: &body,
            headers: &HeaderMap::new(),
            received: self.clock().now(),
            tenant: None,
            slo: SloTargets::default(),
        };
        let dry_run_request = DryRunRequest::prepare(self, source, route_body).await?;
        let decision = dry_run_request.preview()?;
        Ok(dry_run_request.receipt(decision, self.new_request_id(), true))
    }

    /// Returns the id of a request that has none from a client.
    fn new_request_id(&self) -> Arc<str> {
        format!("req-{:016x}", self.edge.ids.next_number()).into()
    }
}

/// Returns the blocks of the prompt that the winner is expected to have cached.
fn overlap_blocks(winner: &Winner) -> u32 {
    winner
        .predicted_cached_tokens
        .checked_div(winner.block_size)
        .unwrap_or_default()
}

/// The result of a call of `/v1/route`.
struct RouteAnswer {
    receipt: Receipt,
    reservation: Option<Reservation>,
}

impl RouteAnswer {
    fn reply(&self) -> RouteReply<'_> {
        let decision = self.receipt.decision();
        RouteReply {
            receipt: (&self.receipt).into(),
            overlap_blocks: decision.map_or(0, |decision| overlap_blocks(&decision.winner)),
            reservation: self.reservation.clone(),
        }
    }
}

/// A call as it came.
#[derive(Clone, Copy)]
struct RouteCall<'a> {
    bytes: &'a Bytes,
    headers: &'a HeaderMap,
    received: Moment,
    tenant: Option<&'a Arc<Tenant>>,
    slo: SloTargets,
}

/// The request in a body of `/v1/route`, up to the decision.
struct DryRunRequest<'a> {
    gateway: &'a Arc<Gateway>,
    body: RouteBody<'a>,
    received: Moment,
    tenant: Option<Arc<Tenant>>,
    slo: SloTargets,
    model: Arc<ModelView>,
    exclude: Vec<Pin>,
    facts: RoutingFacts,
    timing: RouterTiming,
}

/// Tokenizes the prompt. A reservation stands for a generation elsewhere, which waits for this
/// answer; a dry run delays none.
async fn tokenized(
    stages: &GenerationStages,
    call: RouteCall<'_>,
    route_body: &RouteBody<'_>,
    model: &ModelView,
) -> TokenizedPrompt {
    let input = PromptInput {
        dialect: route_body.dialect,
        bytes: call.bytes,
        view: &route_body.view,
        deadline: call.received + stages.request_timeout(),
    };
    match route_body.request_id {
        Some(_) => stages.tokenization.run(&model.artefacts, input).await,
        None => {
            let stage = &stages.tokenization;
            stage.run_low_priority(&model.artefacts, input).await
        }
    }
}

impl<'a> DryRunRequest<'a> {
    async fn read(gateway: &'a Arc<Gateway>, call: &'a AcceptedRequest) -> Result<Self, ApiError> {
        let route_body = body::read(call.body.bytes(), &call.overrides)?;
        let source = RouteCall {
            bytes: call.body.bytes(),
            headers: &call.headers,
            received: call.received,
            tenant: call.tenant.as_ref(),
            slo: call.slo,
        };
        Self::prepare(gateway, source, route_body).await
    }

    /// Finds the model and its workers, and tokenizes the prompt. `route_body` was read from the
    /// body of `call`.
    async fn prepare(
        gateway: &'a Arc<Gateway>,
        call: RouteCall<'a>,
        route_body: RouteBody<'a>,
    ) -> Result<Self, ApiError> {
        let snapshot = gateway.fleet().snapshot();
        let model = queue_wait::find_model(&snapshot, &route_body.view.model)?;
        let pin = decide::pin(
            &snapshot,
            route_body.overrides.worker.as_deref(),
            route_body.worker_param,
        )?;
        // An unknown name is no error here: a worker that failed the caller may already be removed.
        let exclude = route_body
            .exclude
            .iter()
            .filter_map(|name| decide::resolve_worker(&snapshot, name))
            .collect();
        let accept = gateway.clock().now().ms_since(call.received) * 1e3;
        let prompt = tokenized(&gateway.generation, call, &route_body, &model).await;
        let timing = RouterTiming {
            accept,
            render: prompt.render_us,
            tokenize: prompt.tokenize_us,
            ..RouterTiming::default()
        };
        let policies = gateway.decider().policies(&route_body.overrides, &model);
        let sources = gateway.generation.affinity();
        let cluster = sources.cluster(call.headers, &route_body.view).await;
        let keys = AffinityInput {
            policies,
            headers: call.headers,
            body: call.bytes,
            view: &route_body.view,
        };
        let mut affinity = sources.keys(keys, cluster).await;
        let searched = SearchedPrompt {
            model: &model,
            blocks: prompt.blocks.as_deref(),
            salted: route_body.view.cache_salt.is_some(),
        };
        sources.add_block_holders(&mut affinity, searched).await;
        affinity.lmcache = sources
            .lmcache(
                policies,
                &model,
                &prompt,
                CandidateChoice::of(pin, &route_body.view),
            )
            .await;
        let facts = RoutingFacts {
            affinity,
            salt: route_body.view.cache_salt.as_deref().map(Arc::from),
            expected_output_tokens: route_body.expected_output_tokens,
            // The holder of the reservation reports when the prompt is computed.
            answer: ReplyMode::Elsewhere,
            pin,
            handover: Handover::of(&route_body.view),
            api_support: ApiSupport::All,
            // Another process sends it.
            may_fetch: false,
            prompt,
        };
        Ok(Self {
            gateway,
            body: route_body,
            received: call.received,
            tenant: call.tenant.cloned(),
            slo: call.slo,
            model,
            exclude,
            facts,
            timing,
        })
    }

    fn placement(&self) -> PlacementRequest<'_> {
        PlacementRequest {
            overrides: &self.body.overrides,
            facts: &self.facts,
            failed: &self.exclude,
            same_body_as: None,
            may_wait: false,
            tenant: self.tenant.as_deref(),
            slo: self.slo,
            received: self.received,
        }
    }

    /// Decides, and reserves the target if the body has a `request_id`. Without one, `name` is the
    /// id in the receipt, which stays out of the ring: that is about sent requests.
    fn answer(&self, name: &Arc<str>) -> Result<RouteAnswer, ApiError> {
        let (receipt, reservation) = match &self.body.request_id {
            None => (self.receipt(self.preview()?, Arc::clone(name), true), None),
            Some(id) => {
                let (receipt, reservation) = self.reserve(id)?;
                (receipt, Some(reservation))
            }
        };
        Ok(RouteAnswer {
            receipt,
            reservation,
        })
    }

    /// Returns the decision without its effects.
    fn preview(&self) -> Result<Decision, ApiError> {
        let decider = self.gateway.decider();
        decider
            .preview(&self.model, &self.placement())
            .map_err(|refusal| decide::refusal_error(&refusal))
    }

    /// Returns the load that every eligible target would have with the request.
    fn potential_loads(&self) -> Result<Vec<PotentialLoad>, ApiError> {
        let decider = self.gateway.decider();
        let loads = decider
            .potential_loads(&self.model, &self.placement())
            .map_err(|refusal| decide::refusal_error(&refusal))?;
        let rows = loads.into_iter().map(|load| PotentialLoad {
            worker_id: load.name,
            dp_rank: load.target.rank.0,
            potential_prefill_tokens: load.prefill_tokens,
            potential_decode_blocks: load.decode_blocks,
        });
        Ok(rows.collect())
    }

    /// Decides and reserves the target under `id`.
    fn reserve(&self, id: &Arc<str>) -> Result<(Receipt, Reservation), ApiError> {
        let gateway = self.gateway;
        let at = CallTime::now(gateway.clock());
        let open = || self.open_reservation(id, at);
        let size = ReservationSize {
            blocks: self.most_blocks(),
            is_alone: self.tenant.as_ref().is_none_or(|tenant| tenant.is_alone()),
        };
        let owned = ReservationId::of(&tenant_name(self.tenant.as_deref()), id);
        let receipt = gateway.reservations.reserve(&owned, size, at, open)?;
        let expires_at = net::rfc3339(gateway.clock().wall_at(at.now + gateway.reservations.ttl()));
        let reservation = Reservation {
            request_id: Arc::clone(id),
            expires_at,
        };
        Ok((receipt, reservation))
    }

    /// Decides, and publishes the receipt of the reservation.
    fn open_reservation(
        &self,
        id: &Arc<str>,
        at: CallTime,
    ) -> Result<(OpenReservation, Receipt), ApiError> {
        let gateway = self.gateway;
        let placed = gateway
            .decider()
            .place(&self.model, &self.placement(), None);
        let PlacedAttempt {
            decision, lease, ..
        } = match placed {
            PlacementOutcome::Placed(placed) => placed,
            PlacementOutcome::Refused(refusal) => return Err(decide::refusal_error(&refusal)),
            // Without patience no request is queued.
            PlacementOutcome::Queued(_) => return Err(errors::no_worker()),
        };
        let candidates = &self.model.candidates;
        let worker = candidates
            .iter()
            .find(|candidate| candidate.target == lease.target());
        let worker = &worker.ok_or_else(errors::no_worker)?.worker;
        let metrics = &gateway.recorder.metrics;
        metrics.record_prompt_source(self.facts.prompt.source.as_str());
        let took_us = decision.timing.lookup_us + decision.timing.decide_us;
        metrics.record_decision(decision.policy.as_str(), decision.method.as_str(), took_us);
        let receipt = self.receipt(*decision, Arc::clone(id), false);
        gateway.recorder.receipts.ring.push(receipt.clone());
        let place = self.tenant.as_ref().map(|tenant| tenant.stay());
        let reservation = OpenReservation::new(lease, worker, receipt.id, at);
        let reservation = reservation.with_place(place).received_at(self.received);
        Ok((reservation, receipt))
    }

    /// Returns the blocks of the prompt, an upper bound for every target.
    fn most_blocks(&self) -> u64 {
        let smallest = self
            .model
            .candidates
            .iter()
            .map(|candidate| candidate.block_size())
            .min();
        let tokens = self
            .facts
            .prompt
            .blocks
            .as_ref()
            .map_or(0, |blocks| blocks.token_count());
        smallest.map_or(0, |size| size.whole_blocks(tokens).into())
    }

    fn receipt(&self, decision: Decision, request_id: Arc<str>, dry_run: bool) -> Receipt {
        let gateway = self.gateway;
        let timing = RouterTiming {
            hash: decision.timing.hash_us,
            lookup: decision.timing.lookup_us,
            decide: decision.timing.decide_us,
            ..self.timing
        };
        let decided = DecisionFacts {
            id: gateway.recorder.receipts.ids.next_id(),
            at_unix_ms: gateway.clock().unix_ms(),
            request_id,
            tenant: tenant_name(self.tenant.as_deref()),
            route: ROUTE,
            answer: RouterAnswer::Decided(Box::new(decision)),
            queue_wait: QueueWait::default(),
            timing,
        };
        let about = RequestFacts::of(
            &self.body.view,
            &self.model,
            self.body.overrides.priority,
            &self.facts.prompt,
        );
        let cluster = self
            .facts
            .affinity
            .cluster
            .as_ref()
            .map(ClusterMembership::note);
        Receipt {
            dry_run,
            cluster,
            ..about.receipt(decided)
        }
    }
}

/// Decodes a reservation id from a path.
fn id_in_path(text: &str) -> Result<String, ApiError> {
    percent_decoded(text).ok_or_else(|| crate::reservations::not_found(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_in_a_path_is_unescaped_once() {
        for (text, id) in [
            ("r1", "r1"),
            ("a%2Fb", "a/b"),
            ("a/b", "a/b"),
            ("%2541", "%41"),
            ("%3f%23", "?#"),
            ("", ""),
        ] {
            assert_eq!(id_in_path(text).ok().as_deref(), Some(id), "{text}");
        }
        for bad in ["%", "%4", "%zz", "%ff", "a%+1"] {
            assert_eq!(
                id_in_path(bad).map_err(|error| error.code),
                Err(ErrorCode::ReservationNotFound),
                "{bad}"
            );
        }
    }
}
