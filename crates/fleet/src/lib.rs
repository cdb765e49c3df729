//! The fleet: identity, health and models of all workers.
//!
//! One supervisor task per worker probes it, checks it, follows its event streams and publishes its
//! findings in one immutable [`Snapshot`] that every request reads without a lock. The request path
//! reports failures ([`Fleet::report_failure`]); the supervisors find out everything else
//! themselves.
//!
//! Not here: choosing among workers (`routing`), blocks (`kv-index`), forwarding (`gateway`). A
//! worker's output is not trusted: replies are capped and parsed defensively, and a worker that
//! sends nonsense is merely not ready.
//!
//! **Invariant**: a [`kv_blocks::WorkerId`] is never used twice, every task is stopped and awaited
//! by [`Fleet::stop`], and only a worker in state `ready` is a candidate (or, when a model has
//! none, its last good set, marked `panic`).

pub mod artefacts;
mod backend_feeds;
mod config;
mod credentials;
mod engine;
mod failure;
mod fleet;
mod lists;
mod model_report;
mod prefix_view;
mod probe;
pub mod probe_prompt;
mod replacement;
mod reports;
mod request_record;
mod salt_support;
mod served_models;
mod settings;
mod snapshot;
mod snapshot_build;
mod start_error;
mod streams;
mod supervisor;
mod supervisor_config;
mod supervisors;
mod sweeper;
mod telemetry;
mod trust_cache;
mod verdict;
mod worker_check;
mod worker_identity;
mod worker_machine;
mod worker_probe;
mod worker_problem;
mod worker_record;
mod worker_state;
mod worker_table;

pub use artefacts::{HubCache, ModelArtefacts, TokenizerSource};
pub use backend_feeds::{BackendFeed, BlockEvents};
pub use config::{FleetConfig, permitted_addresses};
pub use credentials::credentials;
pub use engine::{EngineKind, MessagesMode};
pub use failure::FailureKind;
pub use fleet::Fleet;
pub use model_report::{ListedModel, ModelListReply};
pub use prefix_view::{PrefixStream, PrefixViewService, RedisPool};
pub use probe::event_endpoints::EventEndpoint;
pub use salt_support::{SaltHandling, SaltSupport, salt_handling};
pub use served_models::{ServedLora, ServedModel, ServedModels};
pub use settings::{FleetParts, NumberedWorker, OnVerdict};
pub use snapshot::{
    CacheSource, EngineLoad, EngineView, KvCacheView, ModelCandidate, ModelView, OtherTarget,
    PrefixCacheCounters, RankView, Snapshot, UnusableTarget, WorkerConnection, WorkerView,
};
pub use start_error::FleetStartError;
pub use trust_cache::TrustCache;
pub use verdict::WorkerVerdict;
pub use worker_probe::{WorkerProbe, WorkerProber};
pub use worker_problem::{ProblemKind, WorkerProblem};
pub use worker_state::{HealthView, WorkerState};
