//! Section `routing`: the choice of a worker.

use std::time::Duration;

use settings::{
    ValueKind, WordChoice,
    kinds::{SECONDS_OR_ZERO, float},
    word, word_or,
};

use super::{LmcacheSection, SemanticClusters, SharedPrefixRouting};
use crate::Policy;

const OVERLAP_WEIGHT: ValueKind = float(0.0, 100.0);
const TEMPERATURE: ValueKind = float(0.0, 10.0);

/// Policies that decide for any request, whatever it has: a fallback must not need another one.
const FALLBACKS: &[WordChoice] = &[
    word("least_loaded"),
    word("round_robin"),
    word("random"),
    word("weighted_round_robin"),
    word("least_latency"),
    word("power_of_two"),
    word("consistent_hash"),
    word("rendezvous_hash"),
    word("warm"),
    word("kv_aware"),
    word("cache_aware"),
    word_or("dynamo_cost", &["kv"]),
];

settings::section! {
    /// Section `routing`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RoutingSection {
        /// Policy of requests that name none. Unset: `warm`, or `continuum` if `prefix_routing` or
        /// `kv_cache_index` is enabled.
        policy: Option<Policy> = "~", live;
        /// Policy among prefill workers. Unset: `policy`.
        prefill_policy: Option<Policy> = "~", live;
        /// Policy among decode workers, for models with prefill or decode workers. Unset: `policy`.
        decode_policy: Option<Policy> = "~", live;
        /// Policy of the requests that `prefix_hash`, `continuum` or `composite` cannot place: those
        /// without a prefix key (token ids, for example), and without a ring those of which too
        /// little is cached anywhere.
        fallback: Policy = "least_loaded" in ValueKind::Word(FALLBACKS), live, simulated;
        /// Weight of cached prefixes. 0: caches are ignored, and no KV events are followed (as with
        /// `kv_events.enabled: false`).
        overlap_weight: f64 = "1.0" in OVERLAP_WEIGHT, live, simulated;
        /// Randomness of the choice. 0: the lowest cost always wins; higher values spread the
        /// choices more evenly.
        temperature: f64 = "0.0" in TEMPERATURE, live, simulated;
        /// Share of its KV cache in use, by the engine's metrics, above which a worker gets no new
        /// requests. Unset: off.
        busy_threshold: Option<f64> = "~", live;
        /// Count the blocks of running requests as load.
        track_active_blocks: bool = "true", live, simulated;
        /// Time limit to compute a prompt's tokens for one decision; 25 times as long if the engine
        /// computes them. Beyond it the text prefix identifies the prompt.
        tokenize_budget: Duration = "2ms" in SECONDS_OR_ZERO, restart;
        /// Time without a call after which a reservation of `/v1/route` ends.
        reservation_ttl: Duration = "300s", restart;
        /// Count the blocks of a placed request as cached at once.
        speculative: bool = "true", live, simulated;
        /// Lifetime of such blocks unless the engine confirms them.
        speculative_ttl: Duration = "2s", live, simulated;
        /// Seed of the hashes that place workers and keys on rings; equal for replicas that must
        /// place alike.
        hash_seed_of_rings: u64 = "0", live, simulated;
        /// Session affinity: recognition of sessions, and their effect.
        session: SessionSection, live;
        /// Policy `warm`; it has no settings, since it learns its rates.
        warm: WarmSection, live;
        /// Weights of the policy `dynamo_cost`, beside `overlap_weight` and `temperature`.
        dynamo: DynamoSettings, live;
        /// Value of a cached block under `kv_aware`, by its medium.
        medium_weights: MediumWeights, live;
        /// LMCache controller that the policy `lmcache_aware` queries.
        lmcache: Option<LmcacheSection>, restart;
        /// Semantic clusters: workers by the meaning of prompts.
        semantic_clusters: Option<SemanticClusters>, restart;
        /// Prefix memory: the last worker for each prompt beginning.
        shared_prefix_routing: Option<SharedPrefixRouting>, restart;
        /// Settings that differ for single models, by the requested name or the base model's name;
        /// a `*` at the end matches any text. An exact name takes precedence over the longest name
        /// with `*`.
        models: Vec<(String, ModelRoutingEntry)> = "{}", live;
    }
}

settings::section! {
    /// An entry of `routing.models`: `None` = as for all models.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ModelRoutingEntry {
        /// Policy; also for prefill and decode workers, unless set below.
        policy: Option<Policy> = "~", live;
        /// Policy among prefill workers.
        prefill_policy: Option<Policy> = "~", live;
        /// Policy among decode workers.
        decode_policy: Option<Policy> = "~", live;
        /// Weight of cached prefixes; above 0, KV events of the model's workers are followed.
        overlap_weight: Option<f64> = "~" in OVERLAP_WEIGHT, live;
        /// Randomness of the choice.
        temperature: Option<f64> = "~" in TEMPERATURE, live;
        /// Share of its KV cache in use above which a worker gets no new requests of the model.
        busy_threshold: Option<f64> = "~", live;
        /// Value of a cached block under `kv_aware`, by its medium.
        medium_weights: MediumWeightOverrides, live;
    }
}

settings::section! {
    /// Section `routing.medium_weights`: value of a cached block by its medium, each 0..1. Remote
    /// storage weighs as disk.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct MediumWeights {
        /// Weight of blocks in GPU memory, or expected there (`--kv-medium-gpu-weight`).
        gpu: f64 = "1.0", live, simulated;
        /// Weight of blocks in host memory (`--kv-medium-cpu-weight`).
        cpu: f64 = "0.3", live, simulated;
        /// Weight of blocks on disk or in remote storage (`--kv-medium-disk-weight`).
        disk: f64 = "0.05", live, simulated;
    }
}

settings::section! {
    /// Medium weights of one model; missing ones are as for all models.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct MediumWeightOverrides {
        /// Weight of blocks in GPU memory.
        gpu: Option<f64> = "~", live;
        /// Weight of blocks in host memory.
        cpu: Option<f64> = "~", live;
        /// Weight of blocks on disk or in remote storage.
        disk: Option<f64> = "~", live;
    }
}

settings::section! {
    /// Section `routing.dynamo`: weights of the terms of `dynamo_cost` besides blocks to compute
    /// and to hold. Dynamo has these as flags of later releases than the one whose cost is the
    /// default here.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct DynamoSettings {
        /// Blocks that each request in flight adds to a worker's cost.
        active_request_weight: f64 = "0.0" in float(0.0, 1e6), live, simulated;
        /// Share of a token in host memory that need not be computed.
        host_cache_hit_weight: f64 = "1.0", live, simulated;
        /// Share of a token on disk or in remote storage that need not be computed.
        disk_cache_hit_weight: f64 = "1.0", live, simulated;
    }
}

settings::section! {
    /// Section `routing.session`: recognition and weight of sessions.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SessionSection {
        /// `soft`: among workers with about the same cost under `warm`, the session's last worker
        /// is chosen. `hard`: under every policy a session stays with its last worker, unless that
        /// is unusable or has too many requests. `off`: sessions are ignored.
        mode: SessionMode = "soft", live;
        /// Headers that name a session; the first one present is used, also by the policies that
        /// hash.
        headers: Vec<String> = "[x-semantic-cluster-id, x-session-id, x-user-id]"
            in ValueKind::List(&ValueKind::HeaderName), live;
    }
}

settings::words! {
    /// The effect of sessions.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum SessionMode {
        /// Under `warm` the session decides between targets of about equal cost.
        #[default]
        Soft = "soft",
        /// A session goes to its target whatever the policy, unless the target cannot be used or
        /// has too many requests.
        Hard = "hard",
        /// Sessions are not remembered.
        Off = "off",
    }
}

settings::section! {
    /// Section `routing.warm`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WarmSection {}
}

impl MediumWeightOverrides {
    /// Returns the weights of the model, or `None` if it has none of its own. `usual` are those of
    /// all models.
    pub fn over(&self, usual: MediumWeights) -> Option<MediumWeights> {
        self.gpu.or(self.cpu).or(self.disk).map(|_| MediumWeights {
            gpu: self.gpu.unwrap_or(usual.gpu),
            cpu: self.cpu.unwrap_or(usual.cpu),
            disk: self.disk.unwrap_or(usual.disk),
        })
    }
}

impl RoutingSection {
    /// Returns the policy of requests that name none.
    pub fn policy(&self) -> Policy {
        self.policy.unwrap_or(Policy::Warm)
    }

    /// Returns whether the policy is named for any pool of any model.
    pub fn names_policy(&self, policy: Policy) -> bool {
        let general = [Some(self.policy()), self.prefill_policy, self.decode_policy];
        let of_models = self
            .models
            .iter()
            .flat_map(|(_, model)| [model.policy, model.prefill_policy, model.decode_policy]);
        general
            .into_iter()
            .chain(of_models)
            .any(|named| named == Some(policy))
    }
}
