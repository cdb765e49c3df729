//! Replies of `/v1/route`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Name, Receipt};

/// `POST /v1/route`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RouteReply<'a> {
    /// The decision.
    #[serde(flatten)]
    pub receipt: Receipt<'a>,
    /// Blocks of the prompt that the winner is expected to have cached; 0 if the prompt is unknown.
    #[serde(default)]
    pub overlap_blocks: u32,
    /// The reservation, if the request asked for one by its `request_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reservation {
    /// Its id.
    pub request_id: Arc<str>,
    /// When it expires without a further call, RFC 3339.
    pub expires_at: String,
}

/// `POST /v1/route/{request_id}/prefill_complete` and `DELETE /v1/route/{request_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservationState {
    /// Id of the reservation.
    pub request_id: String,
    /// Its new state.
    #[schemars(extend("enum" = ["decoding", "freed"]))]
    pub state: Name,
}

/// `POST /v1/route/potential_loads`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PotentialLoads {
    /// One entry per target.
    pub loads: Vec<PotentialLoad>,
}

/// Load of a target if it got the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PotentialLoad {
    /// The worker's name.
    pub worker_id: Arc<str>,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Prompt tokens that it would have to compute.
    pub potential_prefill_tokens: u64,
    /// Blocks that its sequences would have.
    pub potential_decode_blocks: u64,
}
