//! One decision with its reasons, for the receipt.

use std::sync::Arc;

use kv_blocks::Target;

use crate::{
    CacheSource, CostUnit, ExcludedTarget, Policy, PrefillNote, ReservedLoad, SessionNote,
    TargetLoad, Terms, TierTokens,
};

/// The winner, the runner-up and the costs of the candidates.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The policy that decided.
    pub policy: Policy,
    /// How the winner was found.
    pub method: Method,
    /// How the policy placed the request, for policies that distinguish ways: `prefix_hash` has
    /// `prefix_hash` (the key's owner), `overflow` (the owner is full) and `fallback` (there was no
    /// key). `None` for a request that was pinned, or went to the target of its session.
    pub label: Option<&'static str>,
    /// The effect of cache knowledge; `None` under policies that do not use it, and for a request
    /// that was pinned or went to the target of its session.
    pub cache_use: Option<CacheUse>,
    /// Unit of every cost.
    pub cost_unit: CostUnit,
    /// The reported candidates, best rank first; the first one won unless a temperature drew
    /// another.
    pub candidates: Vec<ScoredCandidate>,
    /// Candidates before the cut.
    pub candidates_total: usize,
    /// Excluded targets and the reasons.
    pub excluded: Vec<ExcludedTarget>,
    /// The winner.
    pub winner: Winner,
    /// The best of the other candidates.
    pub runner_up: Option<RunnerUp>,
    /// The effect on its session; `None`: it has none, or sessions are ignored.
    pub session: Option<SessionNote>,
    /// The prefill of the request, where another pool computes prompts.
    pub prefill: Option<PrefillNote>,
    /// The time that the decision took.
    pub timing: DecisionTiming,
}

/// The target that got the request, and what is expected of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Winner {
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// Cached tokens that the engine is expected to report.
    pub predicted_cached_tokens: u32,
    /// The same from the winner's announcements only; differs while the winner is not trusted.
    pub announced_cached_tokens: u32,
    /// Its block size, tokens.
    pub block_size: u32,
    /// Whole blocks of the prompt at this block size.
    pub prompt_blocks: u32,
    /// Load counted on it.
    pub reserved: ReservedLoad,
}

/// The best candidate beside the winner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunnerUp {
    /// The target.
    pub target: Target,
    /// Its cost less the cost of the winner; `None` without a time model.
    pub regret_ms: Option<f64>,
}

/// The time that a decision took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecisionTiming {
    /// Spent hashing the prompt's blocks.
    pub hash_us: f64,
    /// Spent on index lookups.
    pub lookup_us: f64,
    /// Spent on the rest of the decision.
    pub decide_us: f64,
}

impl Decision {
    /// Returns the winner's row; `None` never happens for a decision made by the router.
    pub fn winning(&self) -> Option<&ScoredCandidate> {
        self.candidates
            .iter()
            .find(|row| row.target == self.winner.target)
    }
}

/// The effect of cache knowledge on a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheUse {
    /// The policy used it. The winner is expected to have this share of the prompt cached, 0..1.
    /// Other terms count too, so it need not be the largest share of any worker.
    Decided {
        /// The cached share of the prompt.
        overlap: f64,
    },
    /// Too little is cached anywhere: another rule decided.
    Fallback,
}

/// How a winner was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The policy chose.
    Policy,
    /// The request names the worker.
    Pinned,
    /// The session's worker.
    Session,
    /// Answered from the exact cache.
    CacheHit,
    /// Answered from the semantic cache.
    SemanticHit,
    /// Joined a request in flight.
    Dedup,
    /// There was only one candidate.
    OnlyCandidate,
    /// The policy could not decide.
    Fallback,
    /// No healthy worker: the last good set.
    Panic,
}

impl Method {
    /// Returns the name used in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Pinned => "pinned",
            Self::Session => "session",
            Self::CacheHit => "cache_hit",
            Self::SemanticHit => "semantic_hit",
            Self::Dedup => "dedup",
            Self::OnlyCandidate => "only_candidate",
            Self::Fallback => "fallback",
            Self::Panic => "panic",
        }
    }
}

/// One candidate at the time of the decision.
#[derive(Clone, Debug)]
pub struct ScoredCandidate {
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// Position by cost, from 1.
    pub rank: u32,
    /// Leading prompt tokens held there, by tier.
    pub warm_tokens: TierTokens,
    /// Cached tokens that the engine is expected to report.
    pub predicted_cached_tokens: u32,
    /// Prompt tokens it would have to compute.
    pub uncached_tokens: u32,
    /// The source of knowledge about its cache.
    pub cache_source: CacheSource,
    /// State of its event stream.
    pub stream_state: Option<&'static str>,
    /// Its health.
    pub health: &'static str,
    /// Its load before this request.
    pub load: TargetLoad,
    /// Lower wins.
    pub cost: f64,
    /// Expected time to first token; `None` without a time model.
    pub predicted_ttft_ms: Option<f64>,
    /// The terms of the cost.
    pub terms: Terms,
}

/// The work and blocks of a target if a request went there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PotentialLoad {
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// Prompt tokens to compute: the queued ones, and the uncached tokens of the request.
    pub prefill_tokens: u64,
    /// Blocks of its active sequences and of the request's prompt, shared prefixes counted once.
    pub decode_blocks: u64,
}
