//! One decision with its reasons, as the receipt will show it.

use std::sync::Arc;

use kv_blocks::Target;

use crate::{
    CacheSource, CostUnit, ExcludedTarget, Policy, PrefillNote, SessionNote, TargetLoad, Terms,
};

/// Who won, who came second, and what each would have cost.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The policy that decided.
    pub policy: Policy,
    /// How the winner was found.
    pub method: Method,
    /// How the policy placed the request, where it tells ways apart: `prefix_hash` says `prefix_hash` (the key's owner),
    /// `overflow` (the owner is full) or `fallback` (there was no key). `None` for a request that was pinned, or went to the
    /// target of its session.
    pub label: Option<&'static str>,
    /// What knowledge of caches did for it; `None` under policies that do not go by it, and for a request that was pinned or
    /// went to the target of its session.
    pub cache_use: Option<CacheUse>,
    /// Unit of every cost.
    pub cost_unit: CostUnit,
    /// The candidates worth keeping, best rank first; the first one won unless a temperature drew another.
    pub candidates: Vec<ScoredCandidate>,
    /// Candidates before the cut.
    pub candidates_total: usize,
    /// Who was ruled out, and why.
    pub excluded: Vec<ExcludedTarget>,
    /// The winner.
    pub winner: Target,
    /// The winner's worker name.
    pub winner_name: Arc<str>,
    /// The best of the others.
    pub runner_up: Option<Target>,
    /// Cost of the runner-up less cost of the winner; `None` without a time model.
    pub regret_ms: Option<f64>,
    /// What the engine is expected to report as cached tokens.
    pub predicted_cached_tokens: u32,
    /// The same by the winner's announcements alone; differs while it is not trusted.
    pub announced_cached_tokens: u32,
    /// The winner's block size, tokens.
    pub block_size: u32,
    /// Whole blocks of the prompt at the winner's block size.
    pub prompt_blocks: u32,
    /// Load counted on the winner.
    pub reserved: ReservedLoad,
    /// What became of its session; `None`: it has none that anybody looks at.
    pub session: Option<SessionNote>,
    /// What becomes of its prefill, where another pool computes prompts.
    pub prefill: Option<PrefillNote>,
    /// Microseconds spent hashing the prompt's blocks.
    pub hash_us: f64,
    /// Microseconds spent asking the index.
    pub lookup_us: f64,
    /// Microseconds spent on the rest of the decision.
    pub decide_us: f64,
}

impl Decision {
    /// The winner's row; `None` never happens for a decision made by the router.
    pub fn winning(&self) -> Option<&ScoredCandidate> {
        self.candidates.iter().find(|row| row.target == self.winner)
    }
}

/// What knowledge of caches did for a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheUse {
    /// It was weighed. The winner is believed to have this part of the prompt cached, 0..1: other things count too, so it
    /// need not be the most that any worker has.
    Decided {
        /// That part.
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
    /// The request asked for the worker by name.
    Pinned,
    /// The session's worker.
    Session,
    /// Answered from the exact cache.
    CacheHit,
    /// Answered from the semantic cache.
    SemanticHit,
    /// Joined a request in flight.
    Dedup,
    /// There was only one.
    OnlyCandidate,
    /// The policy could not decide.
    Fallback,
    /// No healthy worker: the last good set.
    Panic,
}

impl Method {
    /// The receipt's word for it.
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

/// One candidate, as it stood when the decision was made.
#[derive(Clone, Debug)]
pub struct ScoredCandidate {
    /// The target.
    pub target: Target,
    /// The worker's name.
    pub name: Arc<str>,
    /// Position by cost, from 1.
    pub rank: u32,
    /// Leading prompt tokens held there, by tier.
    pub warm_tokens: WarmTokens,
    /// What the engine would report as cached.
    pub predicted_cached_tokens: u32,
    /// Prompt tokens it would have to compute.
    pub uncached_tokens: u32,
    /// Where knowledge of its cache comes from.
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
    /// What the cost is made of.
    pub terms: Terms,
}

/// Leading prompt tokens held by a target: disjoint, each token in its best tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmTokens {
    /// In the accelerator's memory.
    pub device: u32,
    /// In host memory.
    pub host: u32,
    /// On local disk.
    pub disk: u32,
    /// In remote storage.
    pub remote: u32,
    /// Expected there, not yet confirmed.
    pub speculative: u32,
}

impl WarmTokens {
    /// All of them.
    pub fn total(self) -> u32 {
        [self.host, self.disk, self.remote, self.speculative]
            .into_iter()
            .fold(self.device, |sum, tokens| sum.saturating_add(tokens))
    }
}

/// Load counted on the winner by a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservedLoad {
    /// Prompt tokens it has to compute.
    pub prefill_tokens: u32,
    /// Blocks of the prompt that were not active there before.
    pub decode_blocks: u32,
}

/// What a target would have to compute and to hold if a request went there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PotentialLoad {
    /// The target.
    pub target: Target,
    /// Its worker's name.
    pub name: Arc<str>,
    /// Prompt tokens to compute: those queued there, and those of the request that it does not hold.
    pub prefill_tokens: u64,
    /// Blocks of its active sequences and of the request's prompt, shared prefixes counted once.
    pub decode_blocks: u64,
}
