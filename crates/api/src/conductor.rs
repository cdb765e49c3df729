//! The Conductor API, whose shapes are those of its own clients.
//!
//! In requests an absent field, `null` and an empty text are the same.

use std::{collections::BTreeMap, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Name, StreamCounts};

/// A refused call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConductorError {
    /// The thing, its value, what is expected and the next step.
    pub error: String,
    /// Top-level field of the body that is at fault.
    pub field: Option<Name>,
}

/// `POST /register`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegisterRequest {
    /// The publisher's ZMQ socket, such as `tcp://10.0.0.5:5557`; of TensorRT-LLM also the URL of
    /// the engine, whose events are then polled.
    pub endpoint: String,
    /// Its replay socket.
    pub replay_endpoint: Option<String>,
    /// `vLLM`, `SGLang`, `TensorRT-LLM` or `Mooncake`, in any case.
    #[serde(rename = "type")]
    pub publisher_type: String,
    /// Model that its blocks belong to.
    pub modelname: String,
    /// LoRA adapter of events that name none.
    pub lora_name: Option<String>,
    /// `default` without.
    pub tenant_id: Option<String>,
    /// The engine's name in replies.
    pub instance_id: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// Salt of events that name none.
    pub additionalsalt: Option<String>,
}

/// Reply of `POST /register`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PublisherRegistered {
    /// Always `registered successfully`; a failure is an error.
    pub status: Name,
    /// The registered instance.
    pub instance_id: Arc<str>,
}

/// `POST /unregister`; further fields of the registration have no effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnregisterRequest {
    /// `default` without.
    pub tenant_id: Option<String>,
    /// The registered instance.
    pub instance_id: String,
    /// Its data-parallel rank.
    pub dp_rank: u32,
}

/// Reply of `POST /unregister`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PublisherUnregistered {
    /// Always `unregistered successfully`; a failure is an error.
    pub status: Name,
    /// The registration, as `INSTANCE|TENANT|RANK`.
    pub removed_instances: Vec<String>,
}

/// `POST /query`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenQuery {
    /// Token ids of the prompt; a partial block at the end is ignored.
    pub token_ids: Vec<u32>,
    /// The cached content and the instances that are compared.
    #[serde(flatten)]
    pub scope: QueryScope,
}

/// `POST /query_by_hash`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HashQuery {
    /// Rolling sequence hashes of the prompt; required unless `block_hash` is sent.
    pub seq_hashes: Option<Vec<HashNumber>>,
    /// Older name of `seq_hashes`.
    pub block_hash: Option<Vec<HashNumber>>,
    /// The cached content and the instances that are compared.
    #[serde(flatten)]
    pub scope: QueryScope,
}

/// A hash, as a number or as decimal digits for clients whose numbers are floats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum HashNumber {
    /// The number.
    Number(u64),
    /// Its decimal digits.
    Digits(String),
}

/// The cached content and the instances that a query compares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueryScope {
    /// The model.
    pub model: String,
    /// Name of the LoRA adapter.
    pub lora_name: Option<String>,
    /// Number of the LoRA adapter, instead of its name.
    pub lora_id: Option<u64>,
    /// `default` without.
    pub tenant_id: Option<String>,
    /// Only this instance is reported.
    pub instance_id: Option<String>,
    /// Tokens per block.
    pub block_size: u32,
    /// Salt of the blocks.
    pub cache_salt: Option<String>,
    /// Only instances registered with this `additionalsalt` have hits.
    pub additional_salt: Option<String>,
}

/// Reply of `POST /query` and `POST /query_by_hash`: the cached tokens of the prompt by tenant and
/// instance; empty for an unknown tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OverlapReply(pub BTreeMap<Arc<str>, BTreeMap<Arc<str>, InstanceOverlap>>);

/// Tokens of a prompt that one instance holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceOverlap {
    /// Longest prefix of any rank, over all tiers.
    pub longest_matched: u64,
    /// Tokens in memory of the accelerator, of the rank that has the most.
    #[serde(rename = "GPU")]
    pub device: u64,
    /// Longest prefix of each data-parallel rank, over all tiers.
    #[serde(rename = "DP")]
    pub ranks: BTreeMap<u32, u64>,
    /// Tokens in memory of the host, of the rank that has the most.
    #[serde(rename = "CPU")]
    pub host: u64,
    /// Tokens on disk, of the rank that has the most.
    #[serde(rename = "DISK")]
    pub disk: u64,
    /// Tokens in a shared store, of the rank that has the most; absent without any.
    #[serde(rename = "REMOTE", default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<u64>,
    /// Tokens on each medium that no tier is named after, of the rank that has the most.
    #[serde(flatten)]
    pub labels: BTreeMap<String, u64>,
}

/// Returns the key of a medium with this label in an [`InstanceOverlap`]: the label, unless it is
/// the name of another key.
pub fn medium_key(label: &str) -> String {
    match label {
        "longest_matched" | "GPU" | "DP" | "CPU" | "DISK" | "REMOTE" => format!("medium {label}"),
        _ => label.to_owned(),
    }
}

/// `GET /services`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceReports {
    /// The router's own workers, then the registered publishers.
    pub services: Vec<ServiceReport>,
}

/// One rank of a router's worker, or one registered publisher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceReport {
    /// Socket of a registered publisher.
    pub endpoint: Option<String>,
    /// Replay socket of a registered publisher.
    pub replay_endpoint: Option<String>,
    /// Kind of engine or publisher.
    #[serde(rename = "type")]
    pub publisher_type: Name,
    /// Model that its blocks belong to; `null` while it is unknown.
    pub modelname: Option<Arc<str>>,
    /// LoRA adapter of events that name none.
    pub lora_name: Arc<str>,
    /// Its tenant.
    pub tenant_id: Arc<str>,
    /// Its name.
    pub instance_id: Arc<str>,
    /// Tokens per block.
    pub block_size: u32,
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// Salt of events that name none.
    pub additionalsalt: Arc<str>,
    /// Whether it is a worker of the router.
    #[schemars(extend("enum" = ["registered", "router"]))]
    pub source: Name,
    /// State of its event stream; `null` without one.
    pub state: Option<Name>,
    /// Its event stream; `/admin/streams` has those of the router's workers.
    #[serde(flatten)]
    pub stream: Option<ServiceStream>,
}

/// Event stream of a registered publisher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceStream {
    /// Sequence number of the last batch applied.
    pub last_seq: Option<u64>,
    /// Arrival time of the last batch, RFC 3339; `null` before the first.
    pub last_event_at: Option<String>,
    /// Totals.
    pub counts: StreamCounts,
    /// Blocks of another size than registered: they are counted and not stored.
    pub other_block_size: u64,
    /// Why the last event was rejected; of another error, and before the first event, a fixed word:
    /// `no_connection`, `unusable_messages` or `earlier_failure`.
    pub last_error: Option<String>,
}

/// `GET /global_view`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GlobalView {
    /// By model and block size, ascending.
    pub models: Vec<ModelInstances>,
}

/// Instances of one model and block size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelInstances {
    /// The model; `null` while it is unknown.
    pub model: Option<Arc<str>>,
    /// Tokens per block.
    pub block_size: u32,
    /// One entry per rank.
    pub instances: Vec<InstanceTokens>,
}

/// Content of one rank's cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceTokens {
    /// The instance.
    pub instance_id: Arc<str>,
    /// Its tenant.
    pub tenant_id: Arc<str>,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Its tokens by tier.
    pub tokens: CachedTokens,
}

/// Cached tokens by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CachedTokens {
    /// In memory of the accelerator.
    #[serde(rename = "gpu")]
    pub device: u64,
    /// In memory of the host.
    #[serde(rename = "cpu")]
    pub host: u64,
    /// On disk.
    pub disk: u64,
    /// In a shared store; absent without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<u64>,
}
