//! Bodies of calls that change something.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `POST /v1/route`: the body of a chat or completion request, or one with `token_ids`, and options
/// of the decision. In the fields that engines do not have, `null` is the same as no field.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct RouteRequest {
    /// The model.
    pub model: String,
    /// The prompt of a chat; exactly one of `messages`, `prompt` and `token_ids` is required.
    pub messages: Option<Vec<Value>>,
    /// The prompt: a text, a list of token ids, or a list of either.
    #[schemars(extend("type" = ["string", "array", "null"]))]
    pub prompt: Option<Value>,
    /// The prompt, tokenized.
    pub token_ids: Option<Vec<u32>>,
    /// The multimodal items of `token_ids`, as in vLLM's `/inference/v1/generate`: `mm_hashes` and
    /// `mm_placeholders`.
    #[schemars(extend("type" = ["object", "null"]))]
    pub features: Option<Value>,
    /// Tools of a chat, which are part of its prompt.
    pub tools: Option<Vec<Value>>,
    /// Reserve the target under this id, of 1 to 128 visible ASCII characters; data listener only.
    pub request_id: Option<String>,
    /// Expected length of the reply, at least 1; without, the request's own limit.
    pub expected_output_tokens: Option<u32>,
    /// Name of the policy.
    pub policy: Option<String>,
    /// The worker, or one rank of it: `NAME` or `NAME/RANK`.
    pub worker: Option<String>,
    /// Names of workers that are not considered.
    pub exclude: Option<Vec<String>>,
    /// Parameters of the policy.
    pub router_config_override: Option<PolicyParameters>,
}

/// Parameters of the policies that have them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyParameters {
    /// Weight of cached blocks, 0 to 100.
    pub overlap_score_weight: Option<f64>,
    /// Randomness of the choice, 0 to 10.
    pub router_temperature: Option<f64>,
}

/// `POST /admin/workers` and `PUT /admin/workers/{name}`: an entry of the configuration's
/// `workers`, with a lease.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct WorkerRequest {
    /// Its name; that of the path if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub name: Option<String>,
    /// Its URL.
    pub url: String,
    /// The worker is removed unless it is added again within this time, 1s to 24h; a number has the
    /// unit seconds.
    #[schemars(extend("type" = ["string", "integer", "null"]))]
    pub lease_ttl: Option<Value>,
    /// All other keys of the entry: `warmroute config schema` has them.
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

/// `POST /admin/drain`; no body counts as an empty object.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Time limit of running requests, such as `300s`.
    pub timeout: Option<String>,
}

/// `POST /admin/reload`; no body counts as an empty object.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReloadRequest {
    /// Only reports what a reload would change.
    #[serde(default)]
    pub dry_run: bool,
}

/// `POST /admin/config/rollback`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Id of an applied change, as `GET /admin/config/history` lists it.
    pub id: u64,
}

/// `POST /admin/response-cache/invalidate`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvalidateRequest {
    /// Must be true.
    pub clear_all: bool,
}

/// `POST /admin/takeover`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeoverRequest {
    /// Absolute path of the unix socket that takes the listening sockets.
    pub socket: PathBuf,
}
