//! The targets that a request may go to, and those that it may not.

use std::sync::Arc;

use kv_blocks::{DpRank, Namespace, Target, Tier, WorkerId};

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
    /// Whether its engine reads blocks from other such targets, and they read from it.
    pub fetches: bool,
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

/// A controller's figures about one candidate's worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LmcacheFacts {
    /// Chunks that the worker holds, of any prompts; `None`: the controller does not know it, or is
    /// unreachable.
    pub keys: Option<u64>,
    /// Leading tokens of this prompt that the worker holds; `None`: no query was made, or no answer
    /// came in time.
    pub matched_tokens: Option<u32>,
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

impl ExcludedTarget {
    pub(crate) fn of(candidate: &Candidate, reason: ExcludeReason) -> Self {
        Self {
            target: candidate.target,
            name: Arc::clone(&candidate.name),
            reason,
        }
    }
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
    /// The tenant may not use it: it is not shown to keep its cached blocks apart.
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
