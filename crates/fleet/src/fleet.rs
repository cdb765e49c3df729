//! The handle of the fleet for the rest of the process.

use std::sync::Arc;

use kv_blocks::{Target, WorkerId};
use prometheus_client::registry::Registry;
use prompt::PromptModel;

use crate::{
    FailureKind, FleetConfig, FleetParts, FleetStartError, NumberedWorker, PrefixViewService,
    Snapshot, artefacts::ArtefactStore, prefix_view::PrefixViewParts, supervisor::AFTER_STALL,
    supervisors::Supervisors, telemetry::FleetCollector, worker_machine::WorkerEvent,
    worker_table::WorkerTable,
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

impl Fleet {
    /// Starts one supervisor per worker and returns at once: no worker needs to be up. Call inside
    /// a tokio runtime.
    ///
    /// Metrics of the workers and their streams are registered in `registry`.
    pub fn start(parts: FleetParts, registry: &mut Registry) -> Result<Self, FleetStartError> {
        let worker_table = WorkerTable::new(Arc::clone(&parts.index), parts.clock);
        Self::start_on(worker_table, parts, registry)
    }

    /// Like [`Fleet::start`], with the log of events that the routers of a fleet share, if they do.
    #[cfg(feature = "nats")]
    pub fn start_with_event_log(
        parts: FleetParts,
        event_log: Option<Arc<event_log::EventLog>>,
        registry: &mut Registry,
    ) -> Result<Self, FleetStartError> {
        let worker_table = WorkerTable::new(Arc::clone(&parts.index), parts.clock);
        Self::start_on(worker_table.with_event_log(event_log), parts, registry)
    }

    fn start_on(
        worker_table: WorkerTable,
        parts: FleetParts,
        registry: &mut Registry,
    ) -> Result<Self, FleetStartError> {
        let config = parts.config;
        let kv_cache_index = parts.kv_cache_index;
        let prefix_view = PrefixViewParts {
            settings: &kv_cache_index,
            redis: parts.redis,
            max_prefix_length: parts.max_prefix_length,
            workers: &config.workers,
            stale_after: config.kv_events.stale_after,
            clock: parts.clock,
        };
        let prefixes =
            PrefixViewService::start(prefix_view, registry).map_err(FleetStartError::Prefixes)?;
        let worker_table = Arc::new(worker_table);
        registry.register_collector(Box::new(FleetCollector::new(Arc::clone(&worker_table))));
        let artefacts = Arc::new(ArtefactStore::new(
            parts.models,
            parts.hub_cache,
            parts.clock,
        ));
        let supervisors = Supervisors::new(
            Arc::clone(&worker_table),
            Arc::clone(&artefacts),
            parts.on_verdict,
            parts.scheme,
        )
        .with_earlier(parts.earlier);
        supervisors.apply(&config)?;
        Ok(Self {
            worker_table,
            artefacts,
            kv_cache_index,
            prefixes,
            supervisors,
        })
    }

    /// Replaces the workers and rules. A worker that stays, by name and URL, keeps its state, its
    /// cache and its streams, and new facts about it are requested in the background. A worker that
    /// is missing here, or has another URL, gets no new requests and leaves ([`Fleet::leaving`]);
    /// where a worker that was never ready takes its place, it serves until that one is ready, for
    /// a minute at most. Call inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// A URL cannot be used; nothing was changed then.
    pub fn apply(&self, config: &FleetConfig) -> Result<(), FleetStartError> {
        self.supervisors.apply(config)
    }

    /// Sets whether a worker gets new requests; running ones go on either way. `None`: no worker
    /// has this name.
    pub fn drain(&self, name: &str, drained: bool) -> Option<WorkerId> {
        self.supervisors.drain(name, drained)
    }

    /// Returns workers that were removed from the configuration, get no new requests, and still
    /// finish running ones.
    pub fn leaving(&self) -> Vec<WorkerId> {
        self.supervisors.leaving()
    }

    /// Removes a leaving worker: its supervisor, its streams, its part of the index.
    pub async fn remove(&self, worker: WorkerId) {
        self.supervisors.remove(worker).await;
    }

    /// Returns the current snapshot; one atomic load.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.worker_table.snapshot()
    }

    pub(crate) fn worker_table(&self) -> &WorkerTable {
        &self.worker_table
    }

    /// Returns the tokenizer that the configuration gives this model, also before any worker lists
    /// it. The first call for a model may take seconds.
    pub async fn configured_artefacts(&self, model: &str) -> Option<Arc<crate::ModelArtefacts>> {
        self.artefacts.configured(model).await
    }

    /// Returns every loaded tokenizer. Some belong to models that no worker lists: configured ones
    /// that were requested, and models whose workers left and may come back.
    pub fn tokenizers(&self) -> Vec<Arc<PromptModel>> {
        self.artefacts.loaded()
    }

    /// Returns the only base model that is or will be served; `None` when there are several.
    pub fn only_model(&self) -> Option<Arc<str>> {
        let snapshot = self.snapshot();
        let served = snapshot
            .workers
            .iter()
            .flat_map(|worker| &worker.served.models)
            .map(|model| Arc::clone(&model.id));
        let mut ids: Vec<Arc<str>> = served.collect();
        if ids.is_empty() {
            ids.extend(self.artefacts.configured_ids().map(Arc::from));
        }
        ids.sort_unstable();
        ids.dedup();
        if ids.len() == 1 { ids.pop() } else { None }
    }

    /// Waits until every worker has its first verdict (a worker that does not answer gets `down`
    /// when its first check has timed out).
    pub async fn first_verdicts(&self) {
        self.supervisors.first_verdicts().await;
    }

    /// Records a failed request: the next snapshot already reflects it. Cheap and non-blocking;
    /// unknown workers are ignored.
    ///
    /// A time-out that a stall of this process may have caused is not counted against the worker.
    pub fn report_failure(&self, worker: WorkerId, kind: FailureKind) {
        if kind.is_timeout() && self.worker_table.clock.resumed_within(AFTER_STALL) {
            self.request_recheck(worker);
            return;
        }
        self.worker_table.request_failed(worker, kind);
    }

    /// Requests an early check of a worker that does not know a model that it listed. Cheap and
    /// non-blocking; unknown workers are ignored.
    pub fn request_recheck(&self, worker: WorkerId) {
        self.worker_table.on(worker, WorkerEvent::CheckRequested);
    }

    /// Records a request answered with a status below 500, and to its end where the head alone does
    /// not decide success. Cheap and non-blocking.
    pub fn report_success(&self, worker: WorkerId) {
        self.worker_table.request_succeeded(worker);
    }

    /// Records that a request's reply has begun; its outcome is reported later. Cheap and
    /// non-blocking.
    pub fn report_answer(&self, worker: WorkerId) {
        self.worker_table.request_answered(worker);
    }

    /// Returns whether a request failed at this worker in the last ten seconds with no answer
    /// since.
    pub fn failed_lately(&self, worker: WorkerId) -> bool {
        self.worker_table.failed_lately(worker)
    }

    /// Sets whether a target's events are trusted. The cache of a distrusted target is predicted
    /// from our own decisions, and its stream is fetched again. Unknown targets are ignored.
    pub fn trust(&self, target: Target, trusted: bool) {
        self.worker_table.trust(target, trusted);
    }

    /// Returns the configuration of the prefix view.
    pub fn kv_cache_index(&self) -> &config::KvCacheIndexSection {
        &self.kv_cache_index
    }

    /// Returns the prefix view; `None`: the configuration disables it.
    pub fn prefixes(&self) -> Option<&PrefixViewService> {
        self.prefixes.as_ref()
    }

    /// Returns the workers with their numbers, which name them in a snapshot of the index. Empty once
    /// the fleet is stopped.
    pub fn numbered_workers(&self) -> Vec<NumberedWorker> {
        self.supervisors.numbered()
    }

    /// Drops what a snapshot had of workers that are not configured and were not discovered either.
    /// Returns their numbers of then, which they do not get afterwards.
    pub fn forget_unclaimed(&self) -> Vec<WorkerId> {
        self.supervisors.forget_unclaimed()
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
