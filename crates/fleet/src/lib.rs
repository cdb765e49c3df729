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
mod board;
mod credentials;
mod crew;
mod engine;
mod entry;
mod failure;
mod feeds;
mod fleet;
mod health;
mod lists;
mod look;
mod meeting;
mod model_report;
mod prefixes;
mod probe;
mod replacement;
mod request_record;
mod roster;
mod settings;
mod snapshot;
mod snapshot_build;
mod streams;
mod supervisor;
mod sweeper;
mod telemetry;
mod trusts;
mod verdict;
mod view;

pub use artefacts::{ModelArtefacts, TokenizerSource};
pub use credentials::credentials;
pub use engine::{Engine, Messages};
pub use failure::FailureKind;
pub use feeds::{BlockEvents, Feed};
pub use fleet::{Fleet, StartError};
pub use meeting::{Meeting, Meetings};
pub use model_report::{ListedModel, ModelList, ModelReport, TemplateReport, TokenizerReport};
pub use prefixes::{PrefixStream, Prefixes, RedisPool};
pub use probe::event_endpoints::EventEndpoint;
pub use roster::Roster;
pub use settings::{FleetParts, HubCache, OnVerdict};
pub use snapshot::{ModelCandidate, ModelView, Snapshot, Unusable};
pub use trusts::Trusts;
pub use verdict::Verdict;
pub use view::{
    CacheSource, EngineLoad, PrefixCacheCounters, RankView, ServedLora, ServedModel, WorkerState,
    WorkerView,
};
