//! The record of one worker.

mod streams;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc};

use kv_blocks::{BlockSize, DpRank};
use net::Clock;
use tokio::sync::Notify;

use crate::{
    CacheSource, EngineKind, EngineView, ModelArtefacts, PrefixCacheCounters, RankView,
    ServedModels, WorkerVerdict, WorkerView,
    streams::FollowedStream,
    supervisor_config::SupervisorConfig,
    worker_identity::WorkerIdentity,
    worker_machine::{HealthSettings, WorkerMachine},
};

/// One worker, as its supervisor updates it.
#[derive(Debug)]
pub(crate) struct WorkerRecord {
    pub(crate) view: Arc<WorkerView>,
    pub(crate) machine: WorkerMachine,
    /// By base model id.
    pub(crate) artefacts: HashMap<Arc<str>, Arc<ModelArtefacts>>,
    /// One stream per rank that has its own, or one for all of them.
    pub(crate) streams: Vec<FollowedStream>,
    /// Ranks whose events are distrusted.
    pub(crate) distrusted: Vec<DpRank>,
    /// Its own prefix-cache counters, by rank, as last read.
    pub(crate) prefix_cache: Vec<(DpRank, PrefixCacheCounters)>,
    /// Whether its events are enabled.
    pub(crate) events_enabled: bool,
    pub(crate) wake: Arc<Notify>,
}

impl WorkerRecord {
    pub(crate) fn new(view: WorkerView, machine: WorkerMachine, events_enabled: bool) -> Self {
        Self {
            view: Arc::new(view),
            machine,
            artefacts: HashMap::new(),
            streams: Vec::new(),
            distrusted: Vec::new(),
            prefix_cache: Vec::new(),
            events_enabled,
            wake: Arc::default(),
        }
    }

    /// Creates the record of a configured worker, before anything is known of it.
    pub(crate) fn from_config(
        worker: &config::WorkerEntry,
        config: &SupervisorConfig,
        health: &Arc<HealthSettings>,
        clock: &Clock,
    ) -> Self {
        let mut view = WorkerView::unknown(
            config.id,
            Arc::clone(&config.name),
            config.client.url().clone(),
            clock.wall(),
        );
        view.engine.kind = worker.engine.unwrap_or(EngineKind::Generic);
        view.engine.messages = config.messages.unwrap_or_default();
        view.ranks = vec![RankView::default(); config.dp_ranks.unwrap_or(1) as usize];
        let machine = WorkerMachine::new(Arc::clone(health), config.periodic_checks);
        let mut record = Self::new(view, machine, config.streams.enabled());
        record.configure(worker);
        record
    }

    /// Returns whether the view already reflects the worker's configuration.
    pub(crate) fn is_configured(&self, worker: &config::WorkerEntry) -> bool {
        let view = &self.view;
        view.role == worker.role
            && view.bootstrap_port == worker.bootstrap_port
            && view.p2p_port == worker.p2p_port
            && view.weight.to_bits() == worker.weight.to_bits()
            && view.connection.api_key == worker.api_key
            && view.connection.verified != worker.tls.insecure_skip_verify
            && view.cache.allow_tiers == worker.allow_tiers
            && worker
                .block_size
                .is_none_or(|size| view.cache.block_size_known && view.cache.block_size == size)
    }

    /// Applies the worker's configuration. The supervisor requests the facts that must be read
    /// again.
    pub(crate) fn configure(&mut self, worker: &config::WorkerEntry) {
        let view = Arc::make_mut(&mut self.view);
        view.role = worker.role;
        view.bootstrap_port = worker.bootstrap_port;
        view.p2p_port = worker.p2p_port;
        view.weight = worker.weight;
        view.connection.api_key.clone_from(&worker.api_key);
        view.connection.verified = !worker.tls.insecure_skip_verify;
        view.cache.allow_tiers.clone_from(&worker.allow_tiers);
        if let Some(size) = worker.block_size {
            (view.cache.block_size, view.cache.block_size_known) = (size, true);
        }
    }

    /// Releases its name to another worker: the two must stay distinguishable.
    pub(crate) fn release_name(&mut self) {
        let number = format!("~{}", self.view.id.0);
        if !self.view.name.ends_with(&number) {
            let view = Arc::make_mut(&mut self.view);
            view.name = format!("{}{number}", view.name).into();
        }
    }

    /// Applies the worker's identity: what it serves, and how. `configured`: the configured block
    /// size.
    pub(crate) fn identify(&mut self, found: &mut WorkerIdentity, configured: Option<BlockSize>) {
        self.artefacts = std::mem::take(&mut found.artefacts);
        let announced = self.announced_block_size();
        let metrics = found.facts.metrics();
        let size = configured
            .or(announced)
            .or(metrics.and_then(|metrics| metrics.block_size));
        let view = Arc::make_mut(&mut self.view);
        view.cache.block_size_known = size.is_some();
        if let Some(size) = size {
            view.cache.block_size = size;
        }
        view.engine = EngineView {
            kind: found.engine,
            version: found.facts.version().cloned(),
            messages: found.facts.messages(),
        };
        view.served = ServedModels {
            models: std::mem::take(&mut found.list.models),
            loras: std::mem::take(&mut found.list.loras),
            namespace_model: Some(Arc::clone(&found.base)),
        };
        view.ranks = vec![RankView::default(); found.ranks as usize];
        view.cache.num_blocks = metrics.and_then(|metrics| metrics.num_blocks);
    }

    /// Updates the part of the view that follows from state machine and streams. Returns whether
    /// the worker's state changed; the caller dates that.
    pub(crate) fn refresh_view(&mut self) -> bool {
        let ranks = self.rank_views();
        if self.view.ranks != ranks {
            Arc::make_mut(&mut self.view).ranks = ranks;
        }
        let machine = &self.machine;
        let same_outage = self.view.health.ended == machine.ended()
            && self.view.health.last_error.as_ref() == machine.last_error();
        if !same_outage {
            let view = Arc::make_mut(&mut self.view);
            view.health.ended = machine.ended();
            view.health.last_error = machine.last_error().cloned();
        }
        if self.view.salt_support != machine.salt_support() {
            Arc::make_mut(&mut self.view).salt_support = machine.salt_support();
        }
        let changed = self.view.health.state != machine.state();
        if changed {
            Arc::make_mut(&mut self.view).health.state = machine.state();
        }
        changed
    }

    /// Returns the present verdict.
    pub(crate) fn verdict(&self) -> WorkerVerdict {
        let view = &self.view;
        let worst = view
            .ranks
            .iter()
            .find(|rank| rank.cache == CacheSource::Predicted)
            .or(view.ranks.first());
        let none = if self.events_enabled { "none" } else { "off" };
        WorkerVerdict {
            worker: Arc::clone(&view.name),
            url: view.connection.url.to_string(),
            state: view.health.state,
            engine: view.engine.kind,
            version: view.engine.version.clone(),
            models: view
                .served
                .models
                .iter()
                .map(|model| Arc::clone(&model.id))
                .collect(),
            block_size: view.cache.block_size.tokens(),
            block_size_known: view.cache.block_size_known,
            events: worst.and_then(|rank| rank.stream).unwrap_or(none),
            replay: view.ranks.iter().all(|rank| rank.replay),
            tokenizer: view
                .served
                .namespace_model
                .as_ref()
                .and_then(|id| self.artefacts.get(id))
                .map_or("none", |artefacts| artefacts.tokenizer_word()),
            problem: view
                .health
                .last_error
                .as_ref()
                .map(|problem| Arc::clone(problem.text())),
        }
    }
}
