//! The receipt of a decision, `warmroute.receipt/1`.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
    ser::SerializeMap,
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
    /// Higher goes first, -100 to 100.
    pub priority: i32,
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
    #[schemars(extend("enum" = ["tokens", "engine_tokenize", "given", "text_prefix", "none"]))]
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

/// A worker and rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetName<'a> {
    /// The worker's name.
    pub worker: Option<Cow<'a, str>>,
    /// Its data-parallel rank.
    pub dp_rank: u32,
}

/// A target that could have taken the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate<'a> {
    /// The target.
    pub target: TargetName<'a>,
    /// Place in the order of cost, from 1.
    pub rank: u32,
    /// Prompt tokens that it holds, each counted in its best tier.
    pub warm_tokens: TierTokens,
    /// Prompt tokens that its reply is expected to report as cached.
    pub predicted_cached_tokens: u32,
    /// Prompt tokens that it would have to compute.
    pub uncached_tokens: u32,
    /// Where the knowledge of its cache comes from.
    #[schemars(extend("enum" = ["events", "predicted"]))]
    pub cache_source: Cow<'a, str>,
    /// State of its event stream.
    pub stream_state: Option<Cow<'a, str>>,
    /// State of its worker.
    pub health: Cow<'a, str>,
    /// Its load.
    pub load: TargetLoad,
    /// The lowest wins.
    pub cost: f64,
    /// Unit of the cost.
    #[schemars(extend("enum" = ["ms", "blocks", "score", "rank"]))]
    pub cost_unit: Cow<'a, str>,
    /// `null` where the policy has no time model.
    pub predicted_ttft_ms: Option<f64>,
    /// Terms of the cost by name, as the policy's page lists them.
    #[schemars(with = "BTreeMap<String, f64>")]
    pub terms: CostTerms<'a>,
}

/// Prompt tokens by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TierTokens {
    /// Memory of the accelerator.
    pub device: u32,
    /// Memory of the host.
    pub host: u32,
    /// Disk of the host.
    pub disk: u32,
    /// Storage shared by engines.
    pub remote: u32,
    /// Sent there and not yet confirmed by an event.
    pub speculative: u32,
}

/// Load of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetLoad {
    /// Requests that were sent and are not done.
    pub in_flight: u32,
    /// Prompt tokens of requests without a first token.
    pub queued_prefill_tokens: u64,
    /// Sequences that decode.
    pub decode_sequences: u32,
    /// Blocks of all active sequences.
    pub decode_blocks: u64,
}

/// Terms of a cost, in the order of the policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostTerms<'a>(pub Vec<(Cow<'a, str>, f64)>);

impl Serialize for CostTerms<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for CostTerms<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Vec<(Cow<'static, str>, f64)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of names to numbers")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut terms = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, f64>()? {
                    terms.push((name.into(), value));
                }
                Ok(terms)
            }
        }
        deserializer.deserialize_map(InOrder).map(Self)
    }
}

/// A target that could not take the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExcludedTarget<'a> {
    /// The target.
    pub target: TargetName<'a>,
    /// Why.
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
}

/// Load that a decision added to the winner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservedLoad {
    /// Prompt tokens to compute.
    pub prefill_tokens: u32,
    /// Blocks of the sequence.
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
