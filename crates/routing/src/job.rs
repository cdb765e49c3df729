//! The input of a decision: one request, and the targets that it may go to.

use std::{fmt, sync::Arc};

use kv_blocks::{DpRank, Namespace, PromptBlocks, Target, Tier, WorkerId};

use crate::{
    Affinity, LmcacheFacts, MediumWeights, Policy, PrefillPool, PrefixHolder, SessionKeys,
    WaitBudget,
};

/// A request that needs a target.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The policy that the request names; `None` selects the configured one.
    pub policy: Option<Policy>,
    /// The worker that the request names: every other candidate is excluded as `not_pinned`.
    pub pin: Option<Pin>,
    /// The prompt, cut into blocks on demand; `None` when it is unknown.
    pub blocks: Option<&'a Arc<PromptBlocks>>,
    /// Keys that the request shares with others that should go to the same target.
    pub affinity: Affinity,
    /// The keys of its session; `None`: it has none. See [`crate::Router::session_mode`].
    pub session: Option<&'a Arc<SessionKeys>>,
    /// The holders of the prompt's beginning, from streams of whole prefixes; `None`: there are no
    /// such streams.
    pub prefix_holders: Option<&'a [PrefixHolder]>,
    /// Prompt length in tokens; an estimate when the blocks are over text.
    pub prompt_tokens: u32,
    /// Upper limit of the reply's length in tokens, if the caller knows it; typical lengths are
    /// learned.
    pub expected_output_tokens: Option<u32>,
    /// How the reply comes back.
    pub answer: ReplyMode,
    /// Whether and how long it may wait in the queue; `None`: it gets an answer at once.
    pub wait_budget: Option<WaitBudget>,
    /// The share of its cache in use, 0 to 1, above which a target takes no new request; `None`: no
    /// limit.
    pub busy_threshold: Option<f64>,
    /// Targets that serve the model and may take the request now, in any order.
    pub candidates: &'a [Candidate],
    /// Targets the caller has already ruled out, for the receipt.
    pub excluded: &'a [ExcludedTarget],
    /// The pool that may compute the prompt; `None`: the decode worker computes it too.
    pub prefill: Option<PrefillPool<'a>>,
    /// A random number for this request; breaks ties between equal costs.
    pub random: u64,
    /// The request's changes of the configuration.
    pub overrides: Overrides,
    /// Measures the parts of the decision.
    pub stopwatch: &'a dyn Stopwatch,
}

/// How the reply comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReplyMode {
    /// Token by token: `first_token` will be called when the prompt is computed.
    #[default]
    Streamed,
    /// Token by token to another process, which sends the request and calls `first_token`. The time
    /// between the decision and the sending is unknown, so the engine's speed is not learned from
    /// it.
    Elsewhere,
    /// In one piece at the end. The end of the prefill is not reported, so its estimated time is
    /// used.
    Whole,
}

/// Changes of the configured routing by one request, or by its model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Weight of cached prefixes, 0 to 100; 0 balances load alone.
    pub overlap_weight: Option<f64>,
    /// 0 takes the lowest cost, above 0 draws by cost.
    pub temperature: Option<f64>,
    /// A higher priority is released first from the queue.
    pub priority: i32,
    /// Value of a cached block by its medium.
    pub medium_weights: Option<MediumWeights>,
}

/// A worker that the request names, or one rank of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The worker.
    pub worker: WorkerId,
    /// The rank, if one was named.
    pub rank: Option<DpRank>,
}

impl Pin {
    /// Returns whether the pin allows `target`.
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
    /// The source of knowledge about the target's cache.
    pub cache: CacheSource,
    /// Size of the target's device cache in blocks, if the engine reports it.
    pub total_blocks: Option<u32>,
    /// Tiers the engine reuses blocks from.
    pub tiers: Tiers,
    /// State of the event stream, for the receipt.
    pub stream_state: Option<&'static str>,
    /// Health, for the receipt.
    pub health: &'static str,
    /// The figures of an LMCache controller about the worker.
    pub lmcache: LmcacheFacts,
    /// Share of the device cache in use, by the engine's latest report.
    pub usage: Option<f64>,
}

impl Candidate {
    /// Returns the weight; 1 if it is not a positive number.
    pub(crate) fn share(&self) -> f64 {
        if self.weight.is_finite() && self.weight > 0.0 {
            self.weight
        } else {
            1.0
        }
    }
}

/// The source of knowledge about a target's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSource {
    /// The engine's own KV events.
    Events,
    /// Our own earlier decisions.
    Predicted,
}

impl CacheSource {
    /// Returns the name used in receipts.
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

    /// Returns whether `tier` is in the set.
    pub fn contains(self, tier: Tier) -> bool {
        self.0[tier.index()]
    }
}

impl Default for Tiers {
    /// Returns device, host and disk: an engine with an offloading cache reuses them by itself.
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
    /// Answers its health checks, but has not finished loading.
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
    /// Failed this request before.
    FailedBefore,
    /// The request names another worker.
    NotPinned,
    /// The prompt does not fit.
    ContextTooLong,
    /// Not in the cluster that the prompt belongs to.
    OtherCluster,
    /// Has no dialect for such a request.
    Dialect,
}

impl ExcludeReason {
    /// Returns the name used in receipts.
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
    /// Returns the microseconds since some fixed point.
    fn elapsed_us(&self) -> f64;
}

impl fmt::Debug for dyn Stopwatch + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopwatch")
    }
}

/// A stopwatch that does not run, for callers that do not measure.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStopwatch;

impl Stopwatch for NoStopwatch {
    fn elapsed_us(&self) -> f64 {
        0.0
    }
}
