//! The JSON of the operator API: one serde type per request body and reply, shared by the server
//! and everything that reads its replies.
//!
//! [`openapi::document`] lists the operations and generates the OpenAPI document from these types.
//! The order of the fields is the order in the JSON. Names of states and kinds are strings here:
//! the crates that own them define the values, and the schema lists them.

mod conductor;
mod config;
mod doctor;
mod error;
mod health;
mod kv_index;
mod kv_index_dump;
mod models;
mod numbers;
pub mod openapi;
mod parity;
mod problem;
mod receipt;
mod replicas;
mod requests;
mod response_cache;
mod route;
mod sessions;
mod stats;
mod streams;
mod tenants;
mod workers;

use std::borrow::Cow;

pub use conductor::{
    CachedTokens, ConductorError, GlobalView, HashNumber, HashQuery, InstanceOverlap,
    InstanceTokens, ModelInstances, OverlapReply, PublisherRegistered, PublisherUnregistered,
    QueryScope, RegisterRequest, ServiceReport, ServiceReports, ServiceStream, TokenQuery,
    UnregisterRequest, medium_key,
};
pub use config::{ConfigHistory, DrainReport, HistoryEntry, ReloadOutcome, TakeoverReply};
pub use doctor::{CheckResult, CheckStatus, DoctorReport, WorkerChecks};
pub use error::{ErrorDetails, ErrorReply};
pub use health::{HealthReply, ProbeReply, WorkerCounts};
pub use kv_index::{
    BackendConnection, BackendEvents, BackendHoldings, BackendReport, BlockStats, CountRange,
    EventSourceReport, IndexEntryStats, KvDecisionCounts, KvIndexBackend, KvIndexBackends,
    KvIndexCleared, KvIndexConfig, KvIndexStats, OverlapScores, ScoringConfig,
};
pub use kv_index_dump::{KvIndexDigest, KvIndexDumpRow, KvStreamNotice, TargetDigest};
pub use models::{ModelReport, ModelReports, TemplateReport, TokenizerReport};
pub use parity::{
    ParityCounts, ParityFigures, ParityReport, ParityVerdict, TargetParity, TtftParity,
    WorkerTtftParity,
};
pub use problem::Problem;
pub use receipt::{
    AttemptReport, Candidate, CandidateFetch, ClusterMatch, CostTerms, ExcludedTarget, PrefillLeg,
    Prompt, QueueHold, Receipt, ReceiptDecision, ReceiptList, ReceiptRequest, ReceiptSlo,
    RequestOutcome, ReservedLoad, RouterTiming, TargetLoad, TargetName, TierTokens,
};
pub use replicas::{ReplicaReport, ReplicaReports, SharedSnapshot};
pub use requests::{
    DrainRequest, InvalidateRequest, PolicyParameters, ReloadRequest, RollbackRequest,
    RouteRequest, TakeoverRequest, WorkerRequest,
};
pub use response_cache::{
    CacheCleared, CacheConfig, CacheRequests, RedisConnections, RedisErrors, RedisReport,
    ResponseCacheStats,
};
pub use route::{PotentialLoad, PotentialLoads, Reservation, ReservationState, RouteReply};
pub use sessions::{AdmissionEnds, CacheInUse, SessionsReport, WaitingForRoom};
pub use stats::{BackendLoad, CounterTotals, PrefixConfig, PrefixDecisions, PrefixRoutingStats};
pub use streams::{StreamCounts, StreamReport, StreamReports};
pub use tenants::{TenantReport, TenantReports};
pub use workers::{
    EngineReport, TierBlocks, WorkerHealth, WorkerIdentity, WorkerLoad, WorkerRates, WorkerRemoval,
    WorkerReport, WorkerReports, WorkerService,
};

/// Name of a state or kind; the crate that owns it defines the values.
pub type Name = Cow<'static, str>;
