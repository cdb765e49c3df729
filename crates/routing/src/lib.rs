//! Chooses the target of a request and records why.
//!
//! [`Router`] is the only decision state machine: `decide` looks up the overlap of the prompt with
//! every candidate's cache, computes every candidate's cost by the chosen [`Policy`], reserves load
//! on the winner and tells the index; `first_token` and `done` move and free that load; `preview`
//! returns what `decide` would and changes nothing. [`receipt`] keeps the decision and its outcome.
//!
//! This crate opens no socket, reads no clock and draws no random number: `now` and `random` are
//! arguments, so the same calls give the same decisions. It does not retry, speaks no HTTP and does
//! not see the client's request.
//!
//! **Invariant**: load is counted inside `decide` and freed exactly once by `done` or `failed`;
//! when every reservation is done, every target's load is exactly zero.

mod affinity;
mod candidate;
mod choice;
mod choose;
mod decaying_sum;
mod decide;
mod decision;
mod distribution;
mod enqueue;
mod health;
mod ids;
mod job;
mod kv_counters;
mod latency;
mod ledger;
mod lmcache;
mod output_length;
mod plan;
mod policy;
mod pool_split;
mod pools;
mod prefill_pool;
mod prefix_counters;
mod prefix_memory;
mod prompt_location;
mod queue;
mod rates;
pub mod receipt;
mod release;
mod router;
mod router_settings;
mod scored_choice;
mod scoring;
mod sections;
mod session;
mod sketch;
mod speculation;
mod state;
mod state_lock;
mod survey;

pub use affinity::Affinity;
pub use api::{ReservedLoad, TargetLoad, TierTokens};
pub use candidate::{CacheSource, Candidate, ExcludeReason, ExcludedTarget, Pin, Tiers};
pub use decision::{
    CacheUse, Decision, DecisionTiming, Method, PotentialLoad, RunnerUp, ScoredCandidate, Winner,
};
pub use distribution::DistributionSnapshot;
pub use ids::{ReservationId, Ticket};
pub use job::{
    ExpectedReply, Job, JobAffinity, JobPrompt, NoStopwatch, Overrides, ReplyMode, Stopwatch,
    TargetPool,
};
pub use kv_counters::{KvCounts, KvDecisionCounters};
pub use lmcache::{LmcacheFacts, LmcacheSettings};
pub use plan::{Dispatch, Leg, Plan, Refusal, ReleasedRequest};
pub use policy::{
    Policy,
    cost::{CostUnit, Terms},
    lmcache_aware::LMCACHE_PREFIX,
    name::UnknownPolicy,
};
pub use prefill_pool::{PrefillLeg, PrefillNote, PrefillPool, PrefillSkip};
pub use prefix_counters::{PrefixCounts, PrefixDecisionCounters};
pub use prefix_memory::{PrefixMemory, PrefixMemorySettings};
pub use queue::{QueueSettings, WaitBudget, WaitReason};
pub use rates::{PrefillCurve, Rates, robust};
pub use router::Router;
pub use router_settings::{CacheAwareSettings, RingSettings, RoutingSettings};
pub use scoring::{OverlapMeasure, PrefixHolder, Scores, ScoringInput, ScoringSettings};
pub use sections::{
    DecisionLogSection, DecisionsSection, DynamoSettings, FALLBACKS, LmcacheMode, LmcacheSection,
    MediumWeightOverrides, MediumWeights, ModelRoutingEntry, PrefixRoutingSection,
    PromptCacheBackend, PromptCacheSection, RoutingSection, SemanticCluster, SemanticClusters,
    SessionMode, SessionSection, SharedPrefixRouting, WarmSection,
};
pub use session::{PromptGrowth, SessionKeys, SessionNote, SessionState};
#[cfg(feature = "lock-observer")]
pub use state_lock::observed::{LockEvent, observe_lock};
