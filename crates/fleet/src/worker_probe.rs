//! Meeting workers once, the way their supervisors do, without keeping them: what a check before traffic goes by.
//!
//! It asks what a supervisor asks, with the same code, so that what is checked is what would be used.

use std::{sync::Arc, time::Duration};

use config::EngineKind;
use kv_blocks::{BlockSize, Moment, WorkerId};

use crate::{
    EventEndpoint, FleetParts, FleetStartError, ModelArtefacts, ServedLora, ServedModel,
    artefacts::ArtefactStore,
    probe::{self, EngineFacts, Scrape},
    streams::WantedStream,
    worker_check::{CheckPace, SupervisorConfig, WorkerChecker},
    worker_record::WorkerRecord,
    worker_table::{EjectionRule, WorkerTable},
};

/// The configured workers, none of them followed or watched.
#[derive(Debug)]
pub struct WorkerProber {
    lookers: Vec<WorkerChecker>,
}

/// Who a worker says it is, and what the router would make of it.
#[derive(Clone, Debug)]
pub struct WorkerProbe {
    /// What kind of engine it is.
    pub engine: EngineKind,
    /// Its version.
    pub version: Option<Arc<str>>,
    /// Base models it serves for us.
    pub models: Vec<ServedModel>,
    /// Adapters it serves for us.
    pub loras: Vec<ServedLora>,
    /// The model that its blocks belong to.
    pub base: Arc<str>,
    /// That model's tokenizer and template, as found on our side.
    pub artefacts: Arc<ModelArtefacts>,
    /// Tokens per block, as its metrics say.
    pub block_size: Option<BlockSize>,
    /// Whether it keeps blocks for later requests, as its metrics say.
    pub prefix_caching: Option<bool>,
    /// Tokens that its counters say were looked for and found in its prefix cache so far, on all ranks.
    pub prefix_cache: Option<(u64, u64)>,
    /// Data-parallel ranks in its metrics; 0: they do not tell.
    pub metrics_ranks: u32,
    /// The publishers it announces. `None`: it does not answer that; empty: it publishes nothing.
    pub announced: Option<Vec<EventEndpoint>>,
    /// The ZMQ publishers that the router would connect to.
    pub streams: Vec<EventEndpoint>,
}

impl WorkerProber {
    /// Reads the configuration. Nobody is asked yet.
    pub fn new(parts: FleetParts) -> Result<Self, FleetStartError> {
        let roster = &parts.config;
        let mut numbers = 0u32..;
        let orders = roster.supervisor_configs(parts.scheme, |_, _| {
            WorkerId(numbers.next().unwrap_or(u32::MAX))
        })?;
        let first = |(worker, order)| {
            WorkerRecord::from_config(worker, order, roster.health_settings(), &parts.clock)
        };
        let entries = roster.workers.iter().zip(&orders).map(first).collect();
        let ejection = EjectionRule {
            enabled: false,
            max_ratio: 0.0,
        };
        let board = Arc::new(WorkerTable::new(
            entries,
            ejection,
            parts.index,
            parts.clock,
        ));
        let artefacts = Arc::new(ArtefactStore::new(
            parts.models,
            parts.hub_cache,
            parts.clock,
        ));
        let looker = |orders| WorkerChecker {
            worker_table: Arc::clone(&board),
            artefacts: Arc::clone(&artefacts),
            config: Arc::new(orders),
        };
        Ok(Self {
            lookers: orders.into_iter().map(looker).collect(),
        })
    }

    /// Runs the health check of the worker at this place of the configuration; the error says what to do.
    pub async fn health(&self, worker: WorkerId) -> Result<(), String> {
        let orders = &self.looker(worker)?.config;
        let engine = orders.engine.unwrap_or(EngineKind::Generic);
        orders
            .health_check
            .run(&orders.client, engine)
            .await
            .map_err(|trouble| trouble.text)
    }

    /// Asks the worker at this place of the configuration who it is; the error says what to do. No question waits longer
    /// than `limit`; loading a tokenizer takes as long as it takes.
    pub async fn probe(&self, worker: WorkerId, limit: Duration) -> Result<WorkerProbe, String> {
        let looker = self.looker(worker)?;
        let mut orders = SupervisorConfig::clone(&looker.config);
        orders.client = orders.client.with_timeout(limit);
        let looker = WorkerChecker {
            config: Arc::new(orders),
            ..looker.clone()
        };
        let discovered = looker
            .identify_worker(&EngineFacts::default(), CheckPace::Thorough)
            .await;
        let mut found = discovered.map_err(|trouble| trouble.text)?;
        let metrics = found.facts.metrics();
        Ok(WorkerProbe {
            engine: found.engine,
            version: found.facts.version().cloned(),
            block_size: metrics.and_then(|metrics| metrics.block_size),
            prefix_caching: metrics.and_then(|metrics| metrics.prefix_caching),
            prefix_cache: found
                .scrape
                .as_ref()
                .and_then(|(_, scrape)| looked_for_and_found(scrape)),
            metrics_ranks: metrics.map_or(0, |metrics| metrics.ranks),
            announced: found.facts.announced().map(<[EventEndpoint]>::to_vec),
            artefacts: found.artefacts.remove(&found.base).unwrap_or_default(),
            models: found.list.models,
            loras: found.list.loras,
            base: found.base,
            streams: found
                .streams
                .into_iter()
                .filter_map(WantedStream::into_publisher)
                .collect(),
        })
    }

    /// The counters of [`Meeting::prefix_cache`], as they stand now.
    pub async fn prefix_cache(&self, worker: WorkerId) -> Option<(u64, u64)> {
        let looker = self.looker(worker).ok()?;
        looked_for_and_found(&probe::scrape(&looker.config.client).await?)
    }

    fn looker(&self, worker: WorkerId) -> Result<&WorkerChecker, String> {
        self.lookers
            .get(worker.0 as usize)
            .ok_or_else(|| format!("there is no worker {}", worker.0))
    }
}

/// The counters of all ranks together; `None`: the engine has none.
fn looked_for_and_found(scrape: &Scrape) -> Option<(u64, u64)> {
    let ranks = scrape.prefix_cache.counters(Moment::START);
    ranks
        .into_iter()
        .map(|(_, it)| (it.queries, it.hits))
        .reduce(|one, other| (one.0.saturating_add(other.0), one.1.saturating_add(other.1)))
}
