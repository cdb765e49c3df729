//! What the router is asked: one request, and the targets it may go to.

use std::{fmt, sync::Arc};

use kv_blocks::{DpRank, Namespace, PromptBlocks, Target, Tier, WorkerId};

use crate::{
    Affinity, LmcacheFacts, MediumWeights, Policy, PrefillPool, PrefixHolder, SessionKeys,
    WaitBudget,
};

/// One request that needs a target.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The policy asked for by name; `None` takes the configured one.
    pub policy: Option<Policy>,
    /// The worker asked for by name: every other candidate is excluded as `not_pinned`.
    pub pin: Option<Pin>,
    /// The prompt, cut into blocks on demand; `None` when nothing is known of it.
    pub blocks: Option<&'a Arc<PromptBlocks>>,
    /// What the request has in common with others that should meet it on the same target.
    pub affinity: Affinity,
    /// By what its session is recognised; `None`: it belongs to none. See [`crate::Router::session_mode`].
    pub session: Option<&'a Arc<SessionKeys>>,
    /// Who holds the prompt's beginning, by streams that name whole prefixes; `None`: there are none.
    pub prefix_holders: Option<&'a [PrefixHolder]>,
    /// Prompt length in tokens; an estimate when the blocks are over text.
    pub prompt_tokens: u32,
    /// How many tokens the reply will have at most, if the caller knows; how long replies are is learned.
    pub expected_output_tokens: Option<u32>,
    /// Who will see its first token.
    pub answer: ReplyMode,
    /// Whether it may be held, and how long; `None`: it is answered at once.
    pub wait_budget: Option<WaitBudget>,
    /// The share of its cache in use, 0 to 1, above which a target takes no new request; `None`: none is too much.
    pub busy_threshold: Option<f64>,
    /// Targets that serve the model and may take the request now, in any order.
    pub candidates: &'a [Candidate],
    /// Targets the caller has already ruled out, for the receipt.
    pub excluded: &'a [ExcludedTarget],
    /// Who may compute the prompt for them; `None`: whoever generates computes it too.
    pub prefill: Option<PrefillPool<'a>>,
    /// A number drawn for this request; settles equal costs.
    pub random: u64,
    /// What this request changes of the configuration.
    pub overrides: Overrides,
    /// Measures the parts of the decision.
    pub stopwatch: &'a dyn Stopwatch,
}

/// How the answer comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReplyMode {
    /// Token by token: `first_token` will be called when the prompt is computed.
    #[default]
    Streamed,
    /// Token by token to somebody else, who sends the request and calls `first_token`. Nobody knows how long it waited
    /// there before it was sent, so the engine's speed is not learned from it.
    Elsewhere,
    /// In one piece at the end. Nobody will say when the prompt was computed, so its estimated time is believed.
    Whole,
}

/// What one request, or its model, changes of the configured routing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Weight of cached prefixes, 0 to 100; 0 balances load alone.
    pub overlap_weight: Option<f64>,
    /// 0 takes the lowest cost, above 0 draws by cost.
    pub temperature: Option<f64>,
    /// Higher goes first among held requests.
    pub priority: i32,
    /// What a cached block is worth by where it sits.
    pub medium_weights: Option<MediumWeights>,
}

/// A worker asked for by name, or one rank of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The worker.
    pub worker: WorkerId,
    /// The rank, if one was named.
    pub rank: Option<DpRank>,
}

impl Pin {
    /// Whether the pin allows `target`.
    pub fn allows(self, target: Target) -> bool {
        self.worker == target.worker && self.rank.is_none_or(|rank| rank == target.rank)
    }
}

/// A target that may take the request.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// Where the target keeps this request's blocks: model, LoRA, salt, block size, identity.
    pub namespace: Namespace,
    /// Configured share of work, compared with the others: above 0.
    pub weight: f64,
    /// Where knowledge of the target's cache comes from.
    pub cache: CacheSource,
    /// Size of the target's device cache in blocks, where the engine tells.
    pub total_blocks: Option<u32>,
    /// Tiers the engine reuses blocks from.
    pub tiers: Tiers,
    /// State of the event stream, for the receipt.
    pub stream_state: Option<&'static str>,
    /// Health, for the receipt.
    pub health: &'static str,
    /// What a controller of LMCache says of its worker.
    pub lmcache: LmcacheFacts,
    /// Share of the device cache in use, as the engine said last.
    pub usage: Option<f64>,
}

impl Candidate {
    /// Its weight; 1 where that is no positive number.
    pub(crate) fn share(&self) -> f64 {
        if self.weight.is_finite() && self.weight > 0.0 {
            self.weight
        } else {
            1.0
        }
    }
}

/// Where knowledge of a target's cache comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSource {
    /// The engine's own KV events.
    Events,
    /// Our own earlier decisions.
    Predicted,
}

impl CacheSource {
    /// The receipt's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Predicted => "predicted",
        }
    }
}

/// A set of tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers([bool; 4]);

impl Tiers {
    /// Every tier.
    pub const ALL: Self = Self([true; 4]);

    /// Whether `tier` is in the set.
    pub fn contains(self, tier: Tier) -> bool {
        self.0[tier.index()]
    }
}

impl Default for Tiers {
    /// Device, host and disk: what an engine with an offloading cache reuses by itself.
    fn default() -> Self {
        Self([true, true, true, false])
    }
}

impl FromIterator<Tier> for Tiers {
    fn from_iter<I: IntoIterator<Item = Tier>>(tiers: I) -> Self {
        let mut set = [false; 4];
        for tier in tiers {
            set[tier.index()] = true;
        }
        Self(set)
    }
}

/// A target that may not take the request.
#[derive(Clone, Debug)]
pub struct ExcludedTarget {
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// Why.
    pub reason: ExcludeReason,
}

/// Why a target may not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExcludeReason {
    /// Does not answer its health checks.
    Unhealthy,
    /// Answers, but has not finished loading.
    WarmingUp,
    /// Takes no new requests.
    Draining,
    /// Ejected after failures.
    CircuitOpen,
    /// Above the busy threshold.
    Busy,
    /// Does not serve the model.
    Model,
    /// Does not have the adapter.
    Lora,
    /// Serves the other phase.
    Role,
    /// The tenant may not use it.
    Acl,
    /// Failed this very request.
    FailedBefore,
    /// Another worker was asked for by name.
    NotPinned,
    /// The prompt does not fit.
    ContextTooLong,
    /// Not of the cluster that the prompt belongs to.
    OtherCluster,
    /// Has no words for such a request.
    Dialect,
}

impl ExcludeReason {
    /// The receipt's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unhealthy => "unhealthy",
            Self::WarmingUp => "warming_up",
            Self::Draining => "draining",
            Self::CircuitOpen => "circuit_open",
            Self::Busy => "busy",
            Self::Model => "model",
            Self::Lora => "lora",
            Self::Role => "role",
            Self::Acl => "acl",
            Self::FailedBefore => "failed_before",
            Self::NotPinned => "not_pinned",
            Self::ContextTooLong => "context_too_long",
            Self::OtherCluster => "other_cluster",
            Self::Dialect => "dialect",
        }
    }
}

/// Measures the parts of a decision for the receipt; the pure core has no clock of its own.
pub trait Stopwatch {
    /// Microseconds since some fixed point.
    fn elapsed_us(&self) -> f64;
}

impl fmt::Debug for dyn Stopwatch + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopwatch")
    }
}

/// A stopwatch that stands still, for callers that do not measure.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStopwatch;

impl Stopwatch for NoStopwatch {
    fn elapsed_us(&self) -> f64 {
        0.0
    }
}
