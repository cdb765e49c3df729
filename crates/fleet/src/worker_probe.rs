//! Probes workers once, as their supervisors do, without supervising them; the basis of a check
//! before traffic.
//!
//! It sends the same requests as a supervisor, with the same code, so that the check covers the
//! real behaviour.

use std::{sync::Arc, time::Duration};

use config::EngineKind;
use kv_blocks::{BlockSize, Moment, WorkerId};

use crate::{
    EventEndpoint, FleetParts, FleetStartError, ModelArtefacts, ServedLora, ServedModel,
    artefacts::ArtefactStore,
    probe::{self, CheckPace, Scrape},
    streams::StreamSpec,
    supervisor_config::SupervisorConfig,
    worker_check::WorkerChecker,
    worker_identity::KnownFacts,
};

/// The configured workers, none of them supervised.
#[derive(Debug)]
pub struct WorkerProber {
    checkers: Vec<WorkerChecker>,
}

/// A worker's identity, and the router's view of it.
#[derive(Clone, Debug)]
pub struct WorkerProbe {
    /// The engine kind.
    pub engine: EngineKind,
    /// Its version.
    pub version: Option<Arc<str>>,
    /// Base models that it serves here.
    pub models: Vec<ServedModel>,
    /// Adapters that it serves here.
    pub loras: Vec<ServedLora>,
    /// The model that its blocks belong to.
    pub base: Arc<str>,
    /// That model's tokenizer and template, as found by the router.
    pub artefacts: Arc<ModelArtefacts>,
    /// Tokens per block, from its metrics.
    pub block_size: Option<BlockSize>,
    /// Whether it caches blocks for later requests, from its metrics.
    pub prefix_caching: Option<bool>,
    /// Tokens queried and found in its prefix cache so far, summed over all ranks, from its
    /// counters.
    pub prefix_cache: Option<(u64, u64)>,
    /// Data-parallel ranks in its metrics; 0: unknown.
    pub metrics_ranks: u32,
    /// The publishers it announces. `None`: it has no such route; empty: it publishes nothing.
    pub announced: Option<Vec<EventEndpoint>>,
    /// The ZMQ publishers that the router would connect to.
    pub streams: Vec<EventEndpoint>,
}

impl WorkerProber {
    /// Reads the configuration. No request is sent yet.
    pub fn new(parts: FleetParts) -> Result<Self, FleetStartError> {
        let mut numbers = 0u32..;
        let configs = parts.config.supervisor_configs(parts.scheme, |_, _| {
            WorkerId(numbers.next().unwrap_or(u32::MAX))
        })?;
        let clock = parts.clock;
        let artefacts = Arc::new(ArtefactStore::new(parts.models, parts.hub_cache, clock));
        let checker = |config| WorkerChecker {
            artefacts: Arc::clone(&artefacts),
            config: Arc::new(config),
            clock,
        };
        Ok(Self {
            checkers: configs.into_iter().map(checker).collect(),
        })
    }

    /// Runs the health check of the worker at this position of the configuration; the error gives
    /// the remedy.
    pub async fn health(&self, worker: WorkerId) -> Result<(), String> {
        let config = &self.checker(worker)?.config;
        let engine = config.engine.unwrap_or(EngineKind::Generic);
        config
            .health_check
            .run(&config.client, engine)
            .await
            .map_err(|error| error.problem.to_string())
    }

    /// Identifies the worker at this position of the configuration; the error gives the remedy. No
    /// request takes longer than `limit`; loading a tokenizer has no limit of its own.
    pub async fn probe(&self, worker: WorkerId, limit: Duration) -> Result<WorkerProbe, String> {
        let checker = self.checker(worker)?;
        let mut config = SupervisorConfig::clone(&checker.config);
        config.client = config.client.with_timeout(limit);
        let checker = WorkerChecker {
            config: Arc::new(config),
            ..checker.clone()
        };
        let discovered = checker
            .identify_worker(&KnownFacts::default(), CheckPace::Thorough)
            .await;
        let mut found = discovered.map_err(|error| error.problem.to_string())?;
        let metrics = found.facts.metrics();
        Ok(WorkerProbe {
            engine: found.engine,
            version: found.facts.version().cloned(),
            block_size: metrics.and_then(|metrics| metrics.block_size),
            prefix_caching: metrics.and_then(|metrics| metrics.prefix_caching),
            prefix_cache: found
                .scrape
                .as_ref()
                .and_then(|(_, scrape)| queries_and_hits(scrape)),
            metrics_ranks: metrics.map_or(0, |metrics| metrics.ranks),
            announced: found.facts.announced().map(<[EventEndpoint]>::to_vec),
            artefacts: found.artefacts.remove(&found.base).unwrap_or_default(),
            models: found.list.models,
            loras: found.list.loras,
            base: found.base,
            streams: found
                .streams
                .into_iter()
                .filter_map(StreamSpec::into_publisher)
                .collect(),
        })
    }

    /// Returns the present counters of [`WorkerProbe::prefix_cache`].
    pub async fn prefix_cache(&self, worker: WorkerId) -> Option<(u64, u64)> {
        let checker = self.checker(worker).ok()?;
        let config = &checker.config;
        queries_and_hits(&probe::scrape(&config.client, config.engine).await?)
    }

    fn checker(&self, worker: WorkerId) -> Result<&WorkerChecker, String> {
        self.checkers
            .get(worker.0 as usize)
            .ok_or_else(|| format!("there is no worker {}", worker.0))
    }
}

/// Returns the counters summed over all ranks; `None`: the engine has none.
fn queries_and_hits(scrape: &Scrape) -> Option<(u64, u64)> {
    let ranks = scrape.prefix_cache.counters(Moment::START);
    ranks
        .into_iter()
        .map(|(_, it)| (it.queries, it.hits))
        .reduce(|one, other| (one.0.saturating_add(other.0), one.1.saturating_add(other.1)))
}
