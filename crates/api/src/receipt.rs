//! The receipt of a decision, `warmroute.receipt/1`.

mod candidate;

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::candidate::{
    Candidate, CandidateFetch, CostTerms, TargetLoad, TargetName, TierTokens,
};

/// `GET /admin/decisions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReceiptList<'a> {
    /// Newest first.
    pub decisions: Vec<Receipt<'a>>,
}

/// One request's receipt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Receipt<'a> {
    /// `warmroute.receipt/1`.
    #[schemars(extend("const" = "warmroute.receipt/1"))]
    pub schema: Cow<'a, str>,
    /// Its id, 16 hex digits; also in `x-warmroute-decision`.
    pub id: String,
    /// Time of the decision, RFC 3339 with milliseconds.
    pub at: String,
    /// The request.
    #[serde(flatten)]
    pub request: ReceiptRequest<'a>,
    /// The decision.
    #[serde(flatten)]
    pub decision: ReceiptDecision<'a>,
    /// The prefill leg where prefill and decode are separate.
    pub prefill: Option<PrefillLeg<'a>>,
    /// Time in the queue.
    pub hold: QueueHold<'a>,
    /// What the decision reserved at the winner.
    pub reserved: ReservedLoad,
    /// Attempts, in order.
    pub attempts: Vec<AttemptReport<'a>>,
    /// The router's own time.
    pub timing_us: RouterTiming,
    /// Changes of the client's body.
    pub rewrites: Vec<Cow<'a, str>>,
    /// `null` while the request runs.
    pub outcome: Option<RequestOutcome<'a>>,
}

/// The request of a receipt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReceiptRequest<'a> {
    /// The request's id.
    pub request_id: Cow<'a, str>,
    /// The tenant's name.
    pub tenant: Cow<'a, str>,
    /// Decided but not sent.
    pub dry_run: bool,
    /// The route's path.
    pub route: Cow<'a, str>,
    /// The model that the client named.
    pub model: Cow<'a, str>,
    /// The worker's name of the model.
    pub served_model: Option<Cow<'a, str>>,
    /// LoRA adapter.
    pub lora: Option<Cow<'a, str>>,
    /// Digest of the session, 16 hex digits.
    pub session: Option<String>,
    /// The semantic cluster that the prompt belongs to.
    pub cluster: Option<ClusterMatch<'a>>,
    /// Whether the client requested a stream.
    pub stream: bool,
    /// Whether its body went to the worker as it arrived: once, without a retry. Absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub body_streamed: bool,
    /// Higher goes first, -100 to 100.
    pub priority: i32,
}

/// The decision of a receipt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReceiptDecision<'a> {
    /// The policy that decided.
    pub policy: Cow<'a, str>,
    /// How the winner was found.
    #[schemars(extend("enum" = [
        "policy", "pinned", "session", "cache_hit", "semantic_hit", "dedup", "only_candidate", "fallback", "panic",
    ]))]
    pub method: Cow<'a, str>,
    /// The prompt.
    pub prompt: Prompt<'a>,
    /// Winner, runner-up, most warm, least loaded, then by rank, up to `decisions.candidates`.
    pub candidates: Vec<Candidate<'a>>,
    /// Number of all candidates.
    pub candidates_total: usize,
    /// Targets that could not take the request.
    pub excluded: Vec<ExcludedTarget<'a>>,
    /// The chosen target; `null` if none was needed or found.
    pub winner: Option<TargetName<'a>>,
    /// The second best.
    pub runner_up: Option<TargetName<'a>>,
    /// What the runner-up would have cost more, ms; `null` where the policy has no time model.
    pub regret_ms: Option<f64>,
    /// The latency targets of the request and what the router expected; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<ReceiptSlo>,
}

/// Latency targets of a request, in milliseconds, and the prediction at the last decision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReceiptSlo {
    /// Target for the time to first token.
    pub ttft_target_ms: Option<f64>,
    /// Target for the mean time between later tokens.
    pub tpot_target_ms: Option<f64>,
    /// Time from the request's arrival to its first token, with the margin that predictions of the
    /// worker need; of a refused request a prediction without one. `null` if nothing predicts it.
    pub predicted_ttft_ms: Option<f64>,
    /// `ttft_target_ms` less `predicted_ttft_ms`: below 0 if the target would be missed.
    pub headroom_ms: Option<f64>,
}

/// The semantic cluster of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterMatch<'a> {
    /// The cluster's name.
    pub name: Cow<'a, str>,
    /// Cosine of prompt and cluster; `null`: the client named the cluster.
    pub similarity: Option<f64>,
}

/// The prompt of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prompt<'a> {
    /// Source of the tokens.
    #[schemars(extend("enum" = ["tokens", "engine_tokenize", "engine_render", "given", "text_prefix", "none"]))]
    pub source: Cow<'a, str>,
    /// Whether the engine processes exactly these tokens.
    pub exact: bool,
    /// Number of tokens; an estimate unless exact.
    pub tokens: u32,
    /// Number of whole blocks.
    pub blocks: Option<u32>,
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// Tokens that the router's own prompt cache did not have.
    pub new_tokens: u32,
}

/// A target that could not take the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExcludedTarget<'a> {
    /// The target.
    pub target: TargetName<'a>,
    /// Why: `unhealthy`, `warming_up`, `draining`, `circuit_open`, `busy`, `model` (its worker does
    /// not serve the model), `lora` (nor the adapter), `role`, `acl` (it is not shown to honour salts,
    /// under `tenants.isolation: strict`), `failed_before`, `not_pinned`, `context_too_long` (the
    /// prompt fits on another one only), `other_cluster`, `dialect`.
    pub reason: Cow<'a, str>,
}

/// The prefill leg.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefillLeg<'a> {
    /// Target of the prefill.
    pub target: Option<TargetName<'a>>,
    /// Whether the decode worker prefilled itself.
    pub skipped: bool,
    /// Why it was skipped.
    pub reason: Option<Cow<'a, str>>,
    /// Duration, ms.
    pub ms: Option<f64>,
}

/// Time in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueHold<'a> {
    /// Duration, ms.
    pub held_ms: f64,
    /// Why the request waited.
    pub reason: Option<Cow<'a, str>>,
    /// Why it waited for room in a cache, and how long that was expected to take, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<String>,
}

/// Load that a decision added to the winner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservedLoad {
    /// Prompt tokens to compute.
    pub prefill_tokens: u32,
    /// Blocks of the prompt that were not active there before.
    pub decode_blocks: u32,
}

/// One attempt at one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptReport<'a> {
    /// From 1.
    pub n: u32,
    /// The target.
    pub target: TargetName<'a>,
    /// How far a failed attempt had come; `null` if it did not fail.
    #[schemars(extend("enum" = [Some("C0"), Some("C1"), Some("C2"), Some("C3"), None::<&str>]))]
    pub class: Option<Cow<'a, str>>,
    /// The result.
    pub result: Cow<'a, str>,
    /// The engine's status, if a head came.
    pub status: Option<u16>,
    /// Duration, ms.
    pub ms: f64,
}

/// Time spent in the router, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouterTiming {
    /// Reading and checking the request.
    pub accept: f64,
    /// Lookup in the response cache.
    pub cache: f64,
    /// Applying the chat template.
    pub render: f64,
    /// Tokenizing.
    pub tokenize: f64,
    /// Hashing blocks.
    pub hash: f64,
    /// Lookup in the index.
    pub lookup: f64,
    /// Choosing the target.
    pub decide: f64,
    /// Total.
    pub total: f64,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RequestOutcome<'a> {
    /// Kind of outcome.
    #[schemars(extend("enum" = [
        "ok", "client_error", "shed", "upstream_error", "router_error", "client_gone",
    ]))]
    pub kind: Cow<'a, str>,
    /// The status that the client got; `null` if it left before one was sent.
    pub status: Option<u16>,
    /// Time to first token.
    pub ttft_ms: Option<f64>,
    /// Time to the end of the reply.
    pub duration_ms: f64,
    /// Prompt tokens by the engine's count.
    pub prompt_tokens: Option<u32>,
    /// Completion tokens by the engine's count.
    pub completion_tokens: Option<u32>,
    /// Cached tokens by the engine's count; `null` when the reply carries no usage.
    pub cached_tokens: Option<u32>,
    /// Predicted minus actual cached tokens.
    pub drift_tokens: Option<i64>,
    /// Why generation ended.
    pub finish_reason: Option<Cow<'a, str>>,
}
