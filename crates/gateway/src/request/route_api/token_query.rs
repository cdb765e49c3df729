//! The calls of `/v1/route` by the process itself: with token ids in memory, and without JSON where
//! every microsecond counts.
//!
//! They are the operator's own: no tenant's limits apply, and the prompt has no salt.

use std::{collections::HashMap, sync::Arc};

use api::PotentialLoad;
use bytes::Bytes;
use dialect::{ApiError, Dialect, ErrorCode, PromptPart, RequestView};
use http::HeaderMap;
use kv_blocks::{Namespace, PromptIdentity, Target};
use routing::{SloTargets, Winner, receipt::DecisionId};
use serde_json::{Map, Value};

use super::{
    DryRunRequest, RouteCall,
    body::{self, RouteBody},
    overlap_blocks,
};
use crate::{
    Gateway, errors, ids,
    request::{
        overrides::{HeaderOverrides, printable},
        queue_wait,
        receipt::tenant_name,
    },
    reservations::{CallTime, ReservationId},
};

/// A prompt of token ids, as the process asks about it.
#[derive(Clone, Debug, Default)]
pub struct TokenQuery<'a> {
    /// The model; `None`: the only one that is served.
    pub model: Option<&'a str>,
    /// The prompt.
    pub token_ids: &'a [u32],
    /// The members of the field `router_config_override` of a body of `/v1/route`.
    pub router_config_override: Option<&'a Map<String, Value>>,
    /// If set, reserves the target under this id.
    pub request_id: Option<&'a str>,
}

/// The best target of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BestWorker {
    /// The worker's name.
    pub worker: Arc<str>,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Blocks of the prompt that it is expected to have cached.
    pub overlap_blocks: u32,
    /// The decision that reserved it; `None` without a request id.
    pub reserved_by: Option<DecisionId>,
}

impl BestWorker {
    fn of(winner: &Winner, reserved_by: Option<DecisionId>) -> Self {
        Self {
            worker: Arc::clone(&winner.name),
            dp_rank: winner.target.rank.0,
            overlap_blocks: overlap_blocks(winner),
            reserved_by,
        }
    }
}

/// The beginning of a prompt that a target holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixMatch {
    /// The worker's name.
    pub worker: Arc<str>,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Whole blocks from the beginning.
    pub blocks: u32,
}

impl Gateway {
    /// Returns the best target of the prompt. Without a request id the call changes no later
    /// decision; with one, the target is reserved until [`Self::free_reservation`].
    ///
    /// # Errors
    ///
    /// Those of `/v1/route`.
    pub async fn best_worker(
        self: &Arc<Self>,
        query: &TokenQuery<'_>,
    ) -> Result<BestWorker, ApiError> {
        let (bytes, headers) = (query.bytes(), HeaderMap::new());
        let call = self.own_call(&bytes, &headers);
        let request = DryRunRequest::prepare(self, call, self.route_body(query)?).await?;
        let Some(id) = &request.body.request_id else {
            return Ok(BestWorker::of(&request.preview()?.winner, None));
        };
        let (receipt, _) = request.reserve(id)?;
        let decision = receipt.decision().ok_or_else(errors::no_worker)?;
        Ok(BestWorker::of(&decision.winner, Some(receipt.id)))
    }

    /// Returns the load that every eligible target would have with the prompt; changes nothing.
    ///
    /// # Errors
    ///
    /// Those of `/v1/route/potential_loads`.
    pub async fn potential_loads(
        self: &Arc<Self>,
        query: &TokenQuery<'_>,
    ) -> Result<Vec<PotentialLoad>, ApiError> {
        let (bytes, headers) = (query.bytes(), HeaderMap::new());
        let call = self.own_call(&bytes, &headers);
        let request = DryRunRequest::prepare(self, call, self.route_body(query)?).await?;
        request.potential_loads()
    }

    /// Returns the answer of `/v1/route` to this body, as JSON.
    ///
    /// # Errors
    ///
    /// Those of `/v1/route`.
    pub async fn route(self: &Arc<Self>, body: &Bytes) -> Result<Vec<u8>, ApiError> {
        let headers = HeaderMap::new();
        let call = self.own_call(body, &headers);
        let route_body = body::read(body, &HeaderOverrides::default())?;
        let request = DryRunRequest::prepare(self, call, route_body).await?;
        let answer = request.answer(&self.new_request_id())?;
        serde_json::to_vec(&answer.reply())
            .map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))
    }

    /// Records that the prompt of a reservation is computed.
    ///
    /// # Errors
    ///
    /// There is no such reservation.
    pub fn complete_prefill(&self, request_id: &str) -> Result<(), ApiError> {
        let at = CallTime::now(self.clock());
        self.reservations.prefill_complete(&own(request_id), at)
    }

    /// Ends a reservation.
    ///
    /// # Errors
    ///
    /// There is no such reservation.
    pub fn free_reservation(&self, request_id: &str) -> Result<(), ApiError> {
        let at = CallTime::now(self.clock());
        self.reservations.free(&own(request_id), at)
    }

    /// Ends the reservation that this decision made under the id, if it is still held: nobody was
    /// told of it.
    pub fn abandon_reservation(&self, request_id: &str, decision: DecisionId) {
        let at = CallTime::now(self.clock());
        self.reservations.abandon(&own(request_id), decision, at);
    }

    /// Returns the usable targets that hold a beginning of the prompt, in the order of the
    /// configuration.
    ///
    /// # Errors
    ///
    /// The model is not served, or not named although there are several.
    pub fn find_matches(&self, query: &TokenQuery<'_>) -> Result<Vec<PrefixMatch>, ApiError> {
        let model = self.model_of(query)?;
        let model = queue_wait::find_model(&self.fleet().snapshot(), &model)?;
        let (router, now) = (&self.decider().router, self.clock().now());
        // Workers of one model differ in the size of their blocks at most.
        let mut found: HashMap<Namespace, HashMap<Target, u32>> = HashMap::new();
        let mut matches = Vec::new();
        for candidate in &model.candidates {
            let held = found
                .entry(candidate.namespace(None, PromptIdentity::Tokens))
                .or_insert_with_key(|namespace| {
                    let held = router.find_matches(namespace, query.token_ids, now);
                    held.into_iter().collect()
                });
            if let Some(blocks) = held.get(&candidate.target) {
                matches.push(PrefixMatch {
                    worker: Arc::clone(&candidate.worker.name),
                    dp_rank: candidate.target.rank.0,
                    blocks: *blocks,
                });
            }
        }
        Ok(matches)
    }

    /// Returns the model of a query.
    fn model_of(&self, query: &TokenQuery<'_>) -> Result<Arc<str>, ApiError> {
        match query.model {
            Some(model) => Ok(model.into()),
            None => self.only_model(),
        }
    }

    /// Returns the only model that is served, for a request that names none.
    ///
    /// # Errors
    ///
    /// There are several, or no worker has listed one yet.
    pub fn only_model(&self) -> Result<Arc<str>, ApiError> {
        if let Some(model) = self.fleet().only_model() {
            return Ok(model);
        }
        let snapshot = self.fleet().snapshot();
        if snapshot.models.is_empty() {
            return Err(errors::no_worker());
        }
        let mut names: Vec<&str> = snapshot.models.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names.truncate(MOST_NAMES);
        let message = format!(
            "the request names no model, and several are served: name one of {}",
            names.join(", ")
        );
        Err(ApiError::new(ErrorCode::InvalidRequest, message).param("model"))
    }

    fn own_call<'a>(&self, bytes: &'a Bytes, headers: &'a HeaderMap) -> RouteCall<'a> {
        RouteCall {
            bytes,
            headers,
            received: self.clock().now(),
            tenant: None,
            slo: SloTargets::default(),
        }
    }

    /// Returns the query as the body of `/v1/route` that has the same fields.
    fn route_body(&self, query: &TokenQuery<'_>) -> Result<RouteBody<'static>, ApiError> {
        if query.token_ids.is_empty() {
            let message = "token_ids is empty: expected a list of one or more token ids";
            return Err(ApiError::new(ErrorCode::InvalidRequest, message).param("token_ids"));
        }
        let is_usable = |id: &str| ids::is_usable(id.as_bytes());
        if let Some(id) = query.request_id.filter(|id| !is_usable(id)) {
            let message = format!(
                "request_id is {:?}: expected 1 to 128 visible ascii characters",
                printable(id)
            );
            return Err(ApiError::new(ErrorCode::InvalidRequest, message).param("request_id"));
        }
        let mut overrides = HeaderOverrides::default();
        if let Some(members) = query.router_config_override {
            body::set_router_config(members, &mut overrides)?;
        }
        Ok(RouteBody {
            view: RequestView {
                model: self.model_of(query)?.to_string().into(),
                prompt: PromptPart::TokenIds(query.token_ids.to_vec()),
                ..RequestView::default()
            },
            dialect: Dialect::Completions,
            request_id: query.request_id.map(Arc::from),
            expected_output_tokens: None,
            overrides,
            worker_param: "worker",
            exclude: Vec::new(),
        })
    }
}

/// Most models that a message names.
const MOST_NAMES: usize = 16;

impl TokenQuery<'_> {
    /// Returns bytes that are equal for equal prompts, in place of a body: a policy that knows
    /// requests by their whole body uses them.
    fn bytes(&self) -> Bytes {
        let ids = self.token_ids.iter();
        // One copy of the list: on every platform that matters its memory has this form already.
        let bytes: Vec<[u8; 4]> = ids.map(|id| id.to_le_bytes()).collect();
        bytes.into_flattened().into()
    }
}

/// Returns the id of a reservation that the process made.
fn own(request_id: &str) -> ReservationId {
    ReservationId::of(&tenant_name(None), request_id)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use serde_json::json;

    use super::*;
    use crate::request::test_gateway::TestGateway;

    const PROMPT: TokenQuery<'_> = TokenQuery {
        model: None,
        token_ids: &[1, 2, 3],
        router_config_override: None,
        request_id: None,
    };

    #[test]
    fn only_equal_prompts_have_equal_bytes() {
        let bytes = |token_ids: &'static [u32]| {
            let query = TokenQuery {
                token_ids,
                ..PROMPT
            };
            query.bytes()
        };
        assert_eq!(bytes(&[]), Bytes::new());
        assert_eq!(
            bytes(&[1, 0x0403_0201]),
            Bytes::from_static(&[1, 0, 0, 0, 1, 2, 3, 4])
        );
        assert_ne!(bytes(&[1, 2]), bytes(&[2, 1]));
    }

    async fn gateway() -> (TestGateway, Arc<Gateway>) {
        let (test, _) = TestGateway::with_worker().await;
        let gateway = Arc::new(test.gateway.clone());
        (test, gateway)
    }

    #[tokio::test]
    #[contract("DY28")]
    async fn a_query_changes_nothing_without_a_request_id_and_reserves_the_target_with_one() {
        let (test, gateway) = gateway().await;
        let best = gateway.best_worker(&PROMPT).await.expect("a worker");
        assert_eq!(
            best,
            BestWorker {
                worker: "w1".into(),
                dp_rank: 0,
                overlap_blocks: 0,
                reserved_by: None
            }
        );
        assert_eq!(test.router.open_reservations(), 0);
        let tracked = TokenQuery {
            request_id: Some("r1"),
            ..PROMPT
        };
        let reserved = gateway.best_worker(&tracked).await.expect("a worker");
        assert!(reserved.reserved_by.is_some());
        assert_eq!((reserved.worker, reserved.dp_rank), (best.worker, 0));
        assert_eq!(test.router.open_reservations(), 1);
        let again = gateway.best_worker(&tracked).await;
        let code = |error: ApiError| error.code;
        assert_eq!(again.map_err(code), Err(ErrorCode::ReservationExists));
        assert!(gateway.complete_prefill("r1").is_ok());
        assert!(gateway.free_reservation("r1").is_ok());
        assert_eq!(test.router.open_reservations(), 0);
        for unknown in [
            gateway.complete_prefill("r1"),
            gateway.free_reservation("r1"),
        ] {
            assert_eq!(unknown.map_err(code), Err(ErrorCode::ReservationNotFound));
        }
    }

    #[tokio::test]
    #[contract("DY30")]
    async fn potential_loads_have_the_prompt_on_every_worker_and_no_load_after_it() {
        let (test, gateway) = gateway().await;
        let loads = gateway.potential_loads(&PROMPT).await.expect("a worker");
        let found: Vec<_> = loads
            .iter()
            .map(|load| {
                (
                    &*load.worker_id,
                    load.dp_rank,
                    load.potential_prefill_tokens,
                )
            })
            .collect();
        assert_eq!(found, [("w1", 0, 3)]);
        assert_eq!(test.router.open_reservations(), 0);
    }

    #[tokio::test]
    async fn a_wrong_query_is_refused_by_the_name_of_its_field() {
        let (test, gateway) = gateway().await;
        let long = "r".repeat(129);
        let too_much = Map::from_iter([("overlap_score_weight".to_owned(), json!(101))]);
        let unknown = Map::from_iter([("weight".to_owned(), json!(1))]);
        let config = |members| TokenQuery {
            router_config_override: Some(members),
            ..PROMPT
        };
        for (query, code, param) in [
            (
                TokenQuery {
                    token_ids: &[],
                    ..PROMPT
                },
                ErrorCode::InvalidRequest,
                Some("token_ids"),
            ),
            (
                TokenQuery {
                    request_id: Some(&long),
                    ..PROMPT
                },
                ErrorCode::InvalidRequest,
                Some("request_id"),
            ),
            (
                TokenQuery {
                    model: Some("other"),
                    ..PROMPT
                },
                ErrorCode::ModelNotFound,
                Some("model"),
            ),
            (
                config(&too_much),
                ErrorCode::InvalidRequest,
                Some("router_config_override.overlap_score_weight"),
            ),
            (
                config(&unknown),
                ErrorCode::InvalidRequest,
                Some("router_config_override"),
            ),
        ] {
            let error = gateway.best_worker(&query).await.expect_err("a wrong one");
            assert_eq!((error.code, error.param.as_deref()), (code, param));
        }
        assert_eq!(test.router.open_reservations(), 0);
    }

    #[tokio::test]
    #[contract("DY17")]
    async fn matches_are_the_leading_blocks_that_each_worker_holds() {
        use kv_blocks::{EngineHash, IndexUpdate, StoredBlocks, Tier};

        let (test, gateway) = gateway().await;
        assert_eq!(gateway.find_matches(&PROMPT).expect("a model"), []);
        let model = gateway.fleet().snapshot().model("m").cloned();
        let held = model.expect("a model").candidates[0].clone();
        let size = held.block_size();
        let tokens: Vec<u32> = (0..size.tokens() * 3).collect();
        test.index
            .register(held.target, Arc::clone(&held.namespace_model));
        test.index.apply(
            held.target,
            &IndexUpdate::Stored(StoredBlocks {
                hashes: vec![EngineHash(1), EngineHash(2)],
                parent: None,
                tokens: tokens[..size.len() * 2].to_vec(),
                block_size: size,
                lora: None,
                media: Vec::new(),
                salt: None,
                tier: Tier::Device,
            }),
        );
        let query = TokenQuery {
            token_ids: &tokens,
            ..PROMPT
        };
        let found = gateway.find_matches(&query).expect("a model");
        let expected = PrefixMatch {
            worker: "w1".into(),
            dp_rank: 0,
            blocks: 2,
        };
        assert_eq!(found, [expected]);
    }

    #[tokio::test]
    #[contract("DY28")]
    async fn the_answer_as_json_is_that_of_the_route() {
        let (_test, gateway) = gateway().await;
        let body = Bytes::from_static(br#"{"model":"m","token_ids":[1,2,3]}"#);
        let answer = gateway.route(&body).await.expect("a worker");
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!(answer["schema"], "warmroute.receipt/1");
        assert_eq!(answer["winner"]["worker"], "w1");
        assert_eq!(
            (&answer["dry_run"], &answer["overlap_blocks"]),
            (&json!(true), &json!(0))
        );
    }
}
