//! Section `routing`: the choice of a worker.

use std::time::Duration;

use settings::{
    ValueKind,
    kinds::{SECONDS_OR_ZERO, float},
};

use super::{LmcacheSection, SemanticClusters, SharedPrefixRouting};
use crate::Policy;

const OVERLAP_WEIGHT: ValueKind = float(0.0, 100.0);
const TEMPERATURE: ValueKind = float(0.0, 10.0);

settings::section! {
    /// Section `routing`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RoutingSection {
        /// How a worker is chosen when the request does not say; unset = `warm`, or `continuum`
        /// where `prefix_routing` or `kv_cache_index` is enabled.
        policy: Option<Policy> = "~", live;
        /// Policy among prefill workers; unset = `policy`.
        prefill_policy: Option<Policy> = "~", live;
        /// Policy among the workers that generate, of models with prefill or decode workers; unset
        /// = `policy`.
        decode_policy: Option<Policy> = "~", live;
        /// Weight of cached prefixes. At 0 caches do not count and no KV events are followed (as
        /// `kv_events.enabled: false`).
        overlap_weight: f64 = "1.0" in OVERLAP_WEIGHT, live, simulated;
        /// 0 = always the best worker; above, how evenly choices are spread.
        temperature: f64 = "0.0" in TEMPERATURE, live, simulated;
        /// A worker whose KV cache is fuller than this, by its own metrics, gets nothing; unset =
        /// off.
        busy_threshold: Option<f64> = "~", live;
        /// Count the blocks of running requests as load.
        track_active_blocks: bool = "true", live, simulated;
        /// Longest time spent on a prompt's tokens for one decision, 25 times as long where the
        /// engine is asked for them; beyond it the text prefix is used.
        tokenize_budget: Duration = "2ms" in SECONDS_OR_ZERO, restart;
        /// A reservation of `/v1/route` without a call is given back after this.
        reservation_ttl: Duration = "300s", restart;
        /// Count a decision's own blocks as warm at once.
        speculative: bool = "true", live, simulated;
        /// How long they count, unless the engine confirms them.
        speculative_ttl: Duration = "2s", live, simulated;
        /// Seed of every hash that places a worker or a key; replicas place alike only with the
        /// same one.
        hash_seed_of_rings: u64 = "0", live, simulated;
        /// Which requests belong together, and how much that counts.
        session: SessionSection, live;
        /// The policy `warm` learns what it needs: it has no settings.
        warm: WarmSection, live;
        /// What the policy `dynamo_cost` takes beside `overlap_weight` and `temperature`.
        dynamo: DynamoSettings, live;
        /// What a warm block counts under `kv_aware`, by where it is.
        medium_weights: MediumWeights, live;
        /// The LMCache controller that the policy `lmcache_aware` asks.
        lmcache: Option<LmcacheSection>, restart;
        /// Workers for prompts that mean alike.
        semantic_clusters: Option<SemanticClusters>, restart;
        /// A memory of who served prompts that begin alike.
        shared_prefix_routing: Option<SharedPrefixRouting>, restart;
        /// Other settings for some models, by the name in requests or by that of the base model; a
        /// `*` at a name's end stands for anything. The whole name counts before the longest with a
        /// `*`.
        models: Vec<(String, ModelRoutingEntry)> = "{}", live;
    }
}

settings::section! {
    /// An entry of `routing.models`: `None` = as for all models.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ModelRoutingEntry {
        /// Policy; where the two below are unset it counts for them too.
        policy: Option<Policy> = "~", live;
        /// Policy among prefill workers.
        prefill_policy: Option<Policy> = "~", live;
        /// Policy among the workers that generate, where prefill is split off.
        decode_policy: Option<Policy> = "~", live;
        /// Weight of cached prefixes; above 0 it has KV events followed.
        overlap_weight: Option<f64> = "~" in OVERLAP_WEIGHT, live;
        /// How evenly choices are spread.
        temperature: Option<f64> = "~" in TEMPERATURE, live;
        /// KV cache use above which a worker gets none of its requests.
        busy_threshold: Option<f64> = "~", live;
        /// What a warm block counts under `kv_aware`, by where it is.
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
        /// Blocks that each request in flight on a worker adds to its cost.
        active_request_weight: f64 = "0.0" in float(0.0, 1e6), live, simulated;
        /// Share of a token cached in host memory that need not be computed.
        host_cache_hit_weight: f64 = "1.0", live, simulated;
        /// The same of one on disk or in remote storage.
        disk_cache_hit_weight: f64 = "1.0", live, simulated;
    }
}

settings::section! {
    /// Section `routing.session`: recognition and weight of sessions.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SessionSection {
        /// `soft` = of workers that cost `warm` about the same a session's last one is taken;
        /// `hard` = under every policy a session goes to its last worker, unless that is out of use
        /// or holds too many requests.
        mode: SessionMode = "soft", live;
        /// Headers that name a session; the first that a request has counts, also for the policies
        /// that hash.
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
}
