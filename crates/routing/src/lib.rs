//! Chooses the target of a request and records why.
//!
//! [`Router`] is the only decision state machine: `decide` looks up the overlap of the prompt with
//! every candidate's cache, computes every candidate's cost by the chosen [`Policy`], reserves load
//! on the winner and updates the index; `first_token` and `done` move and free that load; `preview`
//! returns what `decide` would and changes nothing. [`receipt`] keeps the decision and its outcome.
//!
//! This crate opens no socket, reads no clock and draws no random number: `now` and `random` are
//! arguments, so the same calls give the same decisions. It does not retry, speaks no HTTP and does
//! not see the client's request.
//!
//! **Invariant**: load is counted inside `decide` and freed exactly once by `end_attempt`;
//! when every reservation is done, every target's load is exactly zero.

mod admission;
mod attempt_end;
mod candidate;
mod choice;
mod decaying_sum;
mod decide;
mod decision;
mod distribution;
mod enqueue;
mod fetch;
mod health;
mod job;
mod kv_counters;
mod latency;
mod learned;
mod ledger;
mod model_routing;
mod output_length;
mod policy;
mod pool_split;
mod pools;
mod prefill_pool;
mod prefix_counters;
mod prefix_memory;
mod preview;
mod queue;
mod rates;
pub mod receipt;
mod release;
mod replication;
mod router;
mod router_settings;
mod scoring;
mod sections;
mod session;
mod sketch;
mod slo;
mod state;
mod state_lock;
mod survey;
mod ttft_parity;

pub use admission::{AdmissionCounts, AdmissionReport, LiveTarget, RoomWait, RoomWaiter};
pub use api::{ReservedLoad, TargetLoad, TierTokens};
pub use attempt_end::AttemptEnd;
pub use candidate::{
    CacheSource, Candidate, ExcludeReason, ExcludedTarget, LmcacheFacts, Pin, Tiers,
};
pub use decision::{
    CacheUse, Decision, DecisionTiming, Dispatch, Leg, Method, Plan, Refusal, ReleasedRequest,
    RunnerUp, ScoredCandidate, SessionNote, SessionState, Winner,
};
pub use distribution::DistributionSnapshot;
pub use fetch::{FetchCounts, FetchNote};
pub use job::{
    Affinity, ExpectedReply, Job, JobAffinity, JobPrompt, JobSlo, JobTenant, NoStopwatch,
    Overrides, PrefillPool, PromptKnowledge, ReplyMode, ReservationId, SloTargets, Stopwatch,
    TargetPool, Ticket,
};
pub use kv_counters::{KvCounts, KvDecisionCounters};
pub use learned::LearnedState;
pub use ledger::{
    DecodeSample, DispatchLoad, PredictedPrompt, PrefillSample, SequenceBlocks, SpeedSample,
};
pub use model_routing::ModelRouting;
pub use policy::{
    Policy,
    cost::{CostUnit, Terms},
    lmcache_aware::LMCACHE_PREFIX,
    name::UnknownPolicy,
};
pub use prefill_pool::{PrefillLeg, PrefillNote, PrefillSkip};
pub use prefix_counters::{PrefixCounts, PrefixDecisionCounters, PrefixRoutedRequest};
pub use prefix_memory::PrefixMemory;
pub use preview::PotentialLoad;
pub use queue::{EnginePriority, QueueLimit, QueueSettings, ReportedWork, WaitBudget, WaitReason};
pub use rates::{PrefillCurve, Rates, robust};
pub use replication::{FeedState, LoadChange, LoadDigest, LoadPage, OpenLoad, PeerId};
pub use router::Router;
pub use router_settings::{CacheAwareSettings, LmcacheSettings, RingSettings, RoutingSettings};
pub use scoring::{OverlapMeasure, PrefixHolder, Scores, ScoringInput, ScoringSettings};
pub use sections::{
    AdmissionMode, DecisionLogSection, DecisionsSection, DynamoSettings, FALLBACKS, FetchMode,
    LmcacheMode, LmcacheSection, MediumWeightOverrides, MediumWeights, ModelRoutingEntry,
    PredictionSection, PrefixRoutingSection, PromptCacheBackend, PromptCacheSection,
    RoutingSection, SemanticCluster, SemanticClusters, SessionMode, SessionSection,
    SharedPrefixRouting, SloSection, WarmSection,
};
pub use session::{GrowingChat, PromptGrowth, PromptTail, SessionBinding, SessionKeys};
pub use slo::SloNote;
#[cfg(feature = "lock-observer")]
pub use state_lock::observed::{LockEvent, observe_lock};
pub use ttft_parity::TtftRatios;
