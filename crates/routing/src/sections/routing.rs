//! Section `routing`: the choice of a worker.

use std::time::Duration;

use settings::{
    ValueKind, WordChoice,
    kinds::{SECONDS_OR_ZERO, float},
    word, word_or,
};

use super::{LmcacheSection, SemanticClusters, SharedPrefixRouting, SloSection};
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
        /// Time limit of a query to a vLLM engine's `/v1/chat/completions/render`, which gives the
        /// tokens of a chat whose images, audio or videos are `data:` URLs; without an answer its
        /// text identifies the chat. 0: no query, which would make the engine process all of them
        /// once more.
        render_timeout: Duration = "0s" in SECONDS_OR_ZERO, restart;
        /// Time without a call after which a reservation of `/v1/route` ends.
        reservation_ttl: Duration = "300s", restart;
        /// Count the blocks of a placed request as cached at once.
        speculative: bool = "true", live, simulated;
        /// Lifetime of such blocks unless the engine confirms them.
        speculative_ttl: Duration = "2s", live, simulated;
        /// Seed of the hashes that place workers and keys on rings; equal for replicas that must
        /// place alike.
        hash_seed_of_rings: u64 = "0", live, simulated;
        /// Admission of prompts that are mostly not cached. `live_set`: under `warm`, such a request
        /// waits in the queue until its blocks fit beside those that a worker used lately. Needs KV
        /// events, and `queue.enabled`. `off`, the default since not every client waits for minutes:
        /// every request goes to a worker at once.
        admission: AdmissionMode = "off", live, simulated;
        /// Time within which `admission` lets in each request that waits for room, as far as a
        /// quarter of the workers' time is enough. After four times as long a worker gets it
        /// whatever it displaces.
        admission_wait: Duration = "300s", live, simulated;
        /// Reads of blocks from other workers, under `warm`. `vllm_p2p`: where it is cheaper than to
        /// compute them, a vLLM engine is told in the request to read blocks from a worker that holds
        /// more of the prompt, over the P2P tier of its `OffloadingConnector`. `llm_d`: its
        /// llm-d sidecar is told so in a header. `off`: no source is named.
        fetch: FetchMode = "off", live;
        /// Latency targets of requests, their service level objectives.
        slo: SloSection, live;
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
        policy: Option<Policy> = "~", live, simulated;
        /// Policy among prefill workers.
        prefill_policy: Option<Policy> = "~", live;
        /// Policy among decode workers.
        decode_policy: Option<Policy> = "~", live;
        /// Weight of cached prefixes; above 0, KV events of the model's workers are followed.
        overlap_weight: Option<f64> = "~" in OVERLAP_WEIGHT, live, simulated;
        /// Randomness of the choice.
        temperature: Option<f64> = "~" in TEMPERATURE, live, simulated;
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
        gpu: Option<f64> = "~", live, simulated;
        /// Weight of blocks in host memory.
        cpu: Option<f64> = "~", live, simulated;
        /// Weight of blocks on disk or in remote storage.
        disk: Option<f64> = "~", live, simulated;
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

settings::words! {
    /// Which requests wait until a cache has room for them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum AdmissionMode {
        /// None.
        #[default]
        Off = "off",
        /// Those whose blocks do not fit beside the ones that a target used lately.
        LiveSet = "live_set",
    }
}

impl AdmissionMode {
    /// Returns whether any requests wait for room.
    pub fn is_on(self) -> bool {
        self != Self::Off
    }
}

settings::words! {
    /// Whether engines read blocks from each other, and how they are told to.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum FetchMode {
        /// They do not.
        #[default]
        Off = "off",
        /// By `kv_transfer_params.remote_kv_source`, for vLLM's P2P tier.
        VllmP2p = "vllm_p2p",
        /// By the header `x-kv-cache-source-host-port`, for llm-d's sidecar.
        LlmD = "llm_d",
    }
}

impl FetchMode {
    /// Returns whether any requests name a source.
    pub fn is_on(self) -> bool {
        self != Self::Off
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

/// Multiple of the target wait after which a request is let in whatever it displaces.
const LONGEST_ROOM_WAIT: u32 = 4;

/// Time besides that of the prompt that is left to a request when it is let in at the end of its wait
/// for room.
const ROOM_WAIT_MARGIN: Duration = Duration::from_secs(1);

impl RoutingSection {
    /// Returns the longest wait for room of a request whose prompt takes this long to compute. One
    /// that its caller gives up after `time_left` is let in while its reply can still begin before.
    /// Zero: it has no time to wait.
    pub(crate) fn longest_room_wait(
        &self,
        time_left: Option<Duration>,
        prefill_ms: f64,
    ) -> Duration {
        let longest = self.admission_wait.saturating_mul(LONGEST_ROOM_WAIT);
        let time_for_room = |left| Self::time_for_room(left, prefill_ms);
        time_left.map_or(longest, |left| time_for_room(left).min(longest))
    }

    /// Returns whether a request that would wait this long at the rate at which others are let in is
    /// too late for its caller, who gives it up after `time_left`: at the end of the longest wait it is
    /// let in at any rate.
    pub(crate) fn is_too_late_for_room(
        &self,
        expected: Duration,
        (time_left, prefill_ms): (Duration, f64),
    ) -> bool {
        let time = Self::time_for_room(time_left, prefill_ms);
        time.is_zero() || expected.min(self.longest_room_wait(None, prefill_ms)) > time
    }

    /// Returns how long a request may wait for room so that its reply can begin before its caller gives
    /// it up.
    fn time_for_room(time_left: Duration, prefill_ms: f64) -> Duration {
        let prefill = Duration::try_from_secs_f64(prefill_ms / 1e3).unwrap_or_default();
        time_left.saturating_sub(prefill.saturating_add(ROOM_WAIT_MARGIN))
    }

    /// Returns whether the blocks that targets used lately are followed.
    pub(crate) fn follows_live_blocks(&self) -> bool {
        self.admission.is_on() || self.fetch.is_on()
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_room_leaves_the_time_to_compute_the_prompt() {
        let section = RoutingSection {
            admission_wait: Duration::from_secs(10),
            ..RoutingSection::default()
        };
        for (time_left, prefill_ms, longest) in [
            (None, 5000.0, 40),
            (Some(300), 5000.0, 40),
            (Some(30), 5000.0, 24),
            (Some(7), 5000.0, 1),
            (Some(6), 5000.0, 0),
            (Some(1), 0.0, 0),
            (Some(30), f64::NAN, 29),
        ] {
            let time_left = time_left.map(Duration::from_secs);
            let found = section.longest_room_wait(time_left, prefill_ms);
            assert_eq!(found, Duration::from_secs(longest), "{time_left:?}");
        }
    }

    #[test]
    fn a_request_is_too_late_only_for_its_own_time_limit() {
        let section = RoutingSection {
            admission_wait: Duration::from_secs(10),
            ..RoutingSection::default()
        };
        for (expected, time_left, too_late) in [
            (20, 25, true),
            (20, 26, false),
            // It is let in after 40 s whatever was expected.
            (1000, 45, true),
            (1000, 46, false),
            (0, 6, true),
            (0, 7, false),
        ] {
            let [wait, left] = [expected, time_left].map(Duration::from_secs);
            let found = section.is_too_late_for_room(wait, (left, 5000.0));
            assert_eq!(found, too_late, "{expected} {time_left}");
        }
    }
}
