//! The workers: who they are, whether they may be used, and what is known about their models.
//!
//! One supervisor task per worker probes it, watches it, follows its event streams and publishes what it finds in one
//! immutable [`Snapshot`] that every request reads without a lock. The request path reports failures back
//! ([`Fleet::report_failure`]); everything else the supervisors find out for themselves.
//!
//! Not here: choosing among workers (`routing`), blocks (`kv-index`), forwarding (`gateway`). Nothing a worker says is
//! trusted: replies are capped, parsed defensively, and a worker that talks nonsense is merely not ready.
//!
//! **Invariant**: [`kv_blocks::WorkerId`]s are never used twice, every task is stopped and awaited by [`Fleet::stop`],
//! and only a worker in state `ready` is a candidate (or, when a model has none, its last good set, marked `panic`).

pub mod artefacts;
mod backend_feeds;
mod config;
mod credentials;
mod engine;
mod failure;
mod fleet;
mod health;
mod lists;
mod model_report;
mod prefix_view;
mod probe;
mod replacement;
mod request_record;
mod settings;
mod snapshot;
mod snapshot_build;
mod streams;
mod supervisor;
mod supervisors;
mod sweeper;
mod telemetry;
mod trust_cache;
mod verdict;
mod view;
mod worker_check;
mod worker_probe;
mod worker_record;
mod worker_table;

pub use artefacts::{ModelArtefacts, TokenizerSource};
pub use backend_feeds::{BackendFeed, BlockEvents};
pub use config::FleetConfig;
pub use credentials::credentials;
pub use engine::{EngineKind, MessagesMode};
pub use failure::FailureKind;
pub use fleet::{Fleet, FleetStartError};
pub use model_report::{ListedModel, ModelListReply, ModelReport, TemplateReport, TokenizerReport};
pub use prefix_view::{PrefixStream, PrefixViewService, RedisPool};
pub use probe::event_endpoints::EventEndpoint;
pub use settings::{FleetParts, HubCache, OnVerdict};
pub use snapshot::{ModelCandidate, ModelView, Snapshot, UnusableTarget};
pub use trust_cache::TrustCache;
pub use verdict::WorkerVerdict;
pub use view::{
    CacheSource, EngineLoad, PrefixCacheCounters, RankView, ServedLora, ServedModel, WorkerState,
    WorkerView,
};
pub use worker_probe::{WorkerProbe, WorkerProber};
