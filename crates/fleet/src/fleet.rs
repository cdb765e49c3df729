//! The handle that the rest of the process holds.

use std::{collections::HashMap, sync::Arc};

use kv_blocks::{Target, WorkerId};
use prometheus_client::registry::Registry;
use prompt::PromptModel;

use crate::{
    FailureKind, FleetConfig, FleetParts, PrefixCacheCounters, PrefixViewService, Snapshot,
    artefacts::ArtefactStore,
    backend_feeds::{BackendFeed, BackendFeeds},
    supervisor::AFTER_STALL,
    supervisors::Supervisors,
    telemetry::FleetCollector,
    worker_table::{EjectionRule, WorkerTable},
};

/// All workers and their supervisors.
#[derive(Debug)]
pub struct Fleet {
    worker_table: Arc<WorkerTable>,
    artefacts: Arc<ArtefactStore>,
    kv_cache_index: config::KvCacheIndexSection,
    prefixes: Option<PrefixViewService>,
    supervisors: Supervisors,
}

/// Why a fleet cannot start.
#[derive(Debug, thiserror::Error)]
pub enum FleetStartError {
    /// A worker's URL cannot be used. The configuration checks URLs with the same parser, so this is the last guard.
    #[error("worker {worker}: {error}")]
    Url {
        /// The worker's name.
        worker: String,
        /// What is wrong with it.
        error: net::WorkerUrlError,
    },
    /// There is nothing to check a worker's certificate with.
    #[error("worker {worker}: {error}")]
    Trust {
        /// The worker.
        worker: String,
        /// What is wrong.
        error: net::TrustError,
    },
    /// A stream of prefixes cannot be followed.
    #[error("{0}")]
    Prefixes(String),
}

impl Fleet {
    /// Starts one supervisor per worker and returns at once: no worker needs to be up. Call inside a tokio runtime.
    ///
    /// Metrics of the workers and their streams are registered in `registry`.
    pub fn start(parts: FleetParts, registry: &mut Registry) -> Result<Self, FleetStartError> {
        let roster = parts.config;
        let stale_after = roster.kv_events.stale_after;
        let kv_cache_index = parts.kv_cache_index;
        let prefixes = PrefixViewService::start(
            &kv_cache_index,
            parts.redis,
            parts.max_prefix_length,
            &roster.workers,
            stale_after,
            parts.clock,
            registry,
        );
        let prefixes = prefixes.map_err(FleetStartError::Prefixes)?;
        let board = Arc::new(WorkerTable::new(
            Vec::new(),
            EjectionRule::of(&roster.circuit_breaker),
            parts.index,
            parts.clock,
        ));
        registry.register_collector(Box::new(FleetCollector::new(Arc::clone(&board))));
        let artefacts = Arc::new(ArtefactStore::new(
            parts.models,
            parts.hub_cache,
            parts.clock,
        ));
        let crew = Supervisors::new(
            Arc::clone(&board),
            Arc::clone(&artefacts),
            parts.on_verdict,
            parts.scheme,
        );
        crew.apply(&roster)?;
        Ok(Self {
            worker_table: board,
            artefacts,
            kv_cache_index,
            prefixes,
            supervisors: crew,
        })
    }

    /// Takes other workers and rules over. A worker that stays, by name and URL, stays as it is: its state, its cache and
    /// its streams go on, and what is new for it is asked for beside. One that is missing here, or has another URL, gets
    /// no new requests and leaves ([`Fleet::leaving`]); where a worker that was never ready yet comes in its place, it serves
    /// until that one is ready, for a minute at most. Call inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// A URL cannot be used; nothing was changed then.
    pub fn apply(&self, roster: &FleetConfig) -> Result<(), FleetStartError> {
        self.supervisors.apply(roster)
    }

    /// Whether a worker is to get new requests; running ones go on either way. `None`: no worker has this name.
    pub fn drain(&self, name: &str, drained: bool) -> Option<WorkerId> {
        self.supervisors.drain(name, drained)
    }

    /// Workers that were taken out of the configuration, get nothing new, and are still here for the sake of their running
    /// requests.
    pub fn leaving(&self) -> Vec<WorkerId> {
        self.supervisors.leaving()
    }

    /// Ends what is kept of a worker that is leaving: its supervisor, its streams, its part of the index.
    pub async fn remove(&self, worker: WorkerId) {
        self.supervisors.remove(worker).await;
    }

    /// The fleet as it is now; one atomic load.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.worker_table.snapshot()
    }

    pub(crate) fn worker_table(&self) -> &WorkerTable {
        &self.worker_table
    }

    /// The tokenizer that the configuration gives this model, known also before any worker lists it. The first call for
    /// a model may take seconds.
    pub async fn configured_artefacts(&self, model: &str) -> Option<Arc<crate::ModelArtefacts>> {
        self.artefacts.configured(model).await
    }

    /// Every tokenizer that is loaded. Some are of models that no worker lists: of configured ones that were asked for, and
    /// of those that went and may come back.
    pub fn tokenizers(&self) -> Vec<Arc<PromptModel>> {
        self.artefacts.loaded()
    }

    /// The one base model that is served, or will be; `None` when there are several.
    pub fn only_model(&self) -> Option<Arc<str>> {
        let snapshot = self.snapshot();
        let served = snapshot
            .workers
            .iter()
            .flat_map(|worker| &worker.models)
            .map(|model| Arc::clone(&model.id));
        let mut ids: Vec<Arc<str>> = served.collect();
        if ids.is_empty() {
            ids.extend(self.artefacts.configured_ids().map(Arc::from));
        }
        ids.sort_unstable();
        ids.dedup();
        if ids.len() == 1 { ids.pop() } else { None }
    }

    /// Waits until every worker has had its first verdict (one that does not answer gets `down` when its first check
    /// has timed out).
    pub async fn first_verdicts(&self) {
        self.supervisors.first_verdicts().await;
    }

    /// A request failed at this worker: the next snapshot already reflects it. Cheap and non-blocking; unknown workers
    /// are ignored.
    ///
    /// A time-out that may be of this process's own making, since it stood still, is not held against the worker.
    pub fn report_failure(&self, worker: WorkerId, kind: FailureKind) {
        if kind.is_timeout() && self.worker_table.clock.resumed_within(AFTER_STALL) {
            self.worker_table.request_check(worker);
            return;
        }
        self.worker_table.request_failed(worker, kind);
    }

    /// A worker does not know what it was asked for by the list that it gave: it is looked at soon. Cheap and
    /// non-blocking; unknown workers are ignored.
    pub fn request_recheck(&self, worker: WorkerId) {
        self.worker_table.request_check(worker);
    }

    /// A request was answered, whole where that is not known from its head, with a status below 500. Cheap and
    /// non-blocking.
    pub fn report_success(&self, worker: WorkerId) {
        self.worker_table.request_succeeded(worker);
    }

    /// A request's reply has begun; what becomes of it is reported later. Cheap and non-blocking.
    pub fn report_answer(&self, worker: WorkerId) {
        self.worker_table.request_answered(worker);
    }

    /// Whether a request failed at this worker in the last ten seconds and none was answered since.
    pub fn failed_lately(&self, worker: WorkerId) -> bool {
        self.worker_table.failed_lately(worker)
    }

    /// Whether a target's events are believed. One whose are not is known by our own decisions, and its stream is fetched
    /// anew. Unknown targets are ignored.
    pub fn trust(&self, target: Target, trusted: bool) {
        self.worker_table.trust(target, trusted);
    }

    /// What the engines' own counters of their prefix caches last said (at most some 10 s ago), by target. Engines that do
    /// not tell are left out.
    pub fn prefix_cache_counters(&self) -> HashMap<Target, PrefixCacheCounters> {
        let mut counters = HashMap::new();
        self.worker_table.each(|entry| {
            let worker = entry.view.id;
            counters.extend(entry.prefix_cache.iter().map(|(rank, told)| {
                (
                    Target {
                        worker,
                        rank: *rank,
                    },
                    *told,
                )
            }));
        });
        counters
    }

    /// How often the publisher of each event stream was found to be another process than before, by target.
    pub fn stream_restarts(&self) -> HashMap<Target, u64> {
        let mut restarts = HashMap::new();
        self.worker_table.each(|entry| {
            let resets = |target: Target| {
                Some((
                    target,
                    entry.stream_of(target.rank)?.source.counters().resets,
                ))
            };
            restarts.extend(entry.view.targets().filter_map(resets));
        });
        restarts
    }

    /// How the view of prefixes is configured.
    pub fn kv_cache_index(&self) -> &config::KvCacheIndexSection {
        &self.kv_cache_index
    }

    /// The view of prefixes; `None`: the configuration wants none.
    pub fn prefixes(&self) -> Option<&PrefixViewService> {
        self.prefixes.as_ref()
    }

    /// Every event stream, as `GET /admin/streams` shows it: of blocks in the order of workers and ranks, then of
    /// prefixes.
    pub fn streams(&self) -> Vec<event_sources::StreamReport> {
        let mut reports = Vec::new();
        self.worker_table.each(|entry| {
            for stream in &entry.streams {
                let before = reports.len();
                reports.extend(stream.source.reports());
                if reports.len() == before {
                    // Nobody has said anything yet: that is shown too.
                    reports.push(stream.source.report());
                }
            }
        });
        reports.extend(
            self.prefixes
                .iter()
                .flat_map(PrefixViewService::streams)
                .map(|stream| stream.report),
        );
        reports
    }

    /// What the event streams of each backend said, of blocks and of prefixes together, in the order of names.
    pub fn feeds(&self) -> Vec<BackendFeed> {
        let mut feeds = BackendFeeds::default();
        self.worker_table.each(|entry| feeds.worker(entry));
        self.prefixes
            .iter()
            .for_each(|prefixes| prefixes.feed(&mut feeds));
        feeds.all()
    }

    /// Stops and awaits every supervisor and every stream. A second call returns at once.
    pub async fn stop(&self) {
        self.supervisors.shutdown();
        if let Some(prefixes) = &self.prefixes {
            prefixes.stop().await;
        }
        self.supervisors.stop().await;
    }
}
