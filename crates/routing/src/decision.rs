//! The router's answer: the targets of a request, and the decision with its reasons.

use std::{sync::Arc, time::Duration};

use kv_blocks::Target;

use crate::{
    CacheSource, CostUnit, EnginePriority, ExcludedTarget, FetchNote, Policy, PrefillLeg,
    PrefillNote, QueueLimit, ReservationId, ReservedLoad, RoomWait, SloNote, TargetLoad, Terms,
    Ticket, TierTokens,
};

/// The answer to a job.
#[derive(Debug)]
pub enum Dispatch {
    /// Send it now.
    Plan(Box<Plan>),
    /// The request is queued: wait until one of the router's calls releases the ticket, or cancel
    /// it.
    Queued(Ticket),
    /// No target can take it.
    Refused(Refusal),
}

/// The targets of a request, with their load already counted.
#[derive(Debug)]
pub struct Plan {
    /// The load of the decode leg. The caller always ends it: with `failed` when the worker did not
    /// take the request, else with `done`.
    pub reservation: ReservationId,
    /// The target that computes the prompt, if another one generates.
    pub prefill: Option<PrefillLeg>,
    /// The target that generates.
    pub decode: Leg,
    /// The rank of the request among those waiting on the target, in the order of this router's
    /// queue: for engines that schedule by a number in the request.
    pub engine_priority: EnginePriority,
    /// Why, for the receipt.
    pub decision: Decision,
}

/// One phase of a request on one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The target.
    pub target: Target,
}

/// A queued request that may start now.
#[derive(Debug)]
pub struct ReleasedRequest {
    /// The ticket of the queued request.
    pub ticket: Ticket,
    /// How long it was queued.
    pub waited: Duration,
    /// Why it waited for room, if it did.
    pub room: Option<RoomWait>,
    /// Its targets.
    pub plan: Box<Plan>,
}

/// Why a job has no target.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no target may take the request: {} excluded, see the reasons in the receipt", excluded.len())]
pub struct Refusal {
    /// The policy that would have decided.
    pub policy: Policy,
    /// Every target considered, with the reason against it.
    pub excluded: Vec<ExcludedTarget>,
    /// A target could take it later, but this limit keeps it out of the queue.
    pub queue_full: Option<QueueLimit>,
    /// It has no room, and would wait for it longer than it may: its expected wait.
    pub no_room: Option<Box<RoomWait>>,
    /// It would miss its target on every worker: the target, and a hopeful prediction.
    pub slo_miss: Option<Box<SloNote>>,
}

/// The winner, the runner-up and the costs of the candidates.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The policy that decided.
    pub policy: Policy,
    /// How the winner was found.
    pub method: Method,
    /// How the policy selected the target, for policies with several ways: `prefix_hash` has
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
    /// The latency targets of the request, if it has any, and what is expected.
    pub slo: Option<SloNote>,
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

    /// Returns the blocks that the winner reads from another worker, if it does.
    pub fn fetch(&self) -> Option<&FetchNote> {
        self.winning()?.fetch.as_ref()
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
    /// The blocks that it would read from another worker, if that is cheaper than to compute them.
    /// They count as cached in the figures above, and not as warm.
    pub fetch: Option<FetchNote>,
}

/// The effect of a decision on a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionNote {
    /// The session's first key: equal in all of its requests.
    pub id: u64,
    /// The target relative to the session's last one.
    pub state: SessionState,
}

/// The placement of a session relative to its last target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// The session was unknown.
    New,
    /// On its target.
    Same,
    /// Elsewhere: its target has too many requests.
    MovedFull,
    /// Elsewhere: its target is not a candidate.
    MovedGone,
    /// Elsewhere: the policy chose so.
    MovedByPolicy,
    /// Elsewhere: the request names another worker.
    MovedByPin,
}
