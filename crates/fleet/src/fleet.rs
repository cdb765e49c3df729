//! The handle that the rest of the process holds.

use std::{collections::HashMap, sync::Arc, time::Duration};

use kv_blocks::{BlockSize, Target, WorkerId};
use net::WorkerUrl;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    EngineLoad, FailureKind, FleetParts, PrefixCacheCounters, Prefixes, RankView, Snapshot, Trusts, WorkerState,
    WorkerView,
    artefacts::ArtefactStore,
    board::{Board, Ejection},
    engine::Engine,
    entry::Entry,
    health::{Health, HealthSettings},
    look::Orders,
    probe::{Asker, HealthCheck},
    streams::StreamSettings,
    supervisor::{ASSUMED_BLOCK, Supervisor},
    telemetry::FleetCollector,
};

/// Between reads of the engines' own load: what a busy threshold goes by is at most 10 s old, however long a read takes.
const SCRAPE_EVERY: Duration = Duration::from_secs(5);

/// All workers and their supervisors.
#[derive(Debug)]
pub struct Fleet {
    board: Arc<Board>,
    artefacts: Arc<ArtefactStore>,
    kv_cache_index: config::KvCacheIndex,
    prefixes: Option<Prefixes>,
    workers: usize,
    stop: watch::Sender<bool>,
    /// Taken by the first [`Fleet::stop`].
    supervisors: Mutex<Vec<JoinHandle<()>>>,
}

/// Why a fleet cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
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
    pub fn start(parts: FleetParts, registry: &mut Registry) -> Result<Self, StartError> {
        let (entries, orders) = first_entries(&parts)?;
        let stale_after = parts.kv_events.stale_after;
        let kv_cache_index = parts.kv_cache_index;
        let prefixes = Prefixes::start(
            &kv_cache_index,
            parts.max_prefix_length,
            &parts.workers,
            stale_after,
            parts.clock,
            registry,
        );
        let prefixes = prefixes.map_err(StartError::Prefixes)?;
        let ejection =
            Ejection { enabled: parts.circuit_breaker.enabled, max_ratio: parts.circuit_breaker.max_ejected_ratio };
        let board = Arc::new(Board::new(entries, ejection, parts.index, parts.clock));
        registry.register_collector(Box::new(FleetCollector::new(Arc::clone(&board))));
        let artefacts = Arc::new(ArtefactStore::new(parts.models, parts.hub_cache, parts.clock));
        let stop = watch::Sender::new(false);
        let workers = orders.len();
        let supervisors = orders
            .into_iter()
            .map(|order| {
                let (board, artefacts) = (Arc::clone(&board), Arc::clone(&artefacts));
                let supervisor = Supervisor::new(board, artefacts, Arc::clone(&parts.on_verdict), order);
                tokio::spawn(supervisor.run(stop.subscribe()))
            })
            .collect();
        Ok(Self { board, artefacts, kv_cache_index, prefixes, workers, stop, supervisors: Mutex::new(supervisors) })
    }

    /// The fleet as it is now; one atomic load.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.board.snapshot()
    }

    /// The tokenizer that the configuration gives this model, known also before any worker lists it. The first call for
    /// a model may take seconds.
    pub async fn configured_artefacts(&self, model: &str) -> Option<Arc<crate::ModelArtefacts>> {
        self.artefacts.configured(model).await
    }

    /// The one base model that is served, or will be; `None` when there are several.
    pub fn only_model(&self) -> Option<Arc<str>> {
        let snapshot = self.snapshot();
        let served = snapshot.workers.iter().flat_map(|worker| &worker.models).map(|model| Arc::clone(&model.id));
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
        let mut settled = self.board.settled.subscribe();
        // The sender lives as long as the board does.
        let _ = settled.wait_for(|settled| *settled >= self.workers).await;
    }

    /// A request failed at this worker: the next snapshot already reflects it. Cheap and non-blocking; unknown workers
    /// are ignored.
    pub fn report_failure(&self, worker: WorkerId, kind: FailureKind) {
        self.board.request_failed(worker, kind);
    }

    /// A request's head arrived with a status below 500. Cheap and non-blocking.
    pub fn report_success(&self, worker: WorkerId) {
        self.board.request_succeeded(worker);
    }

    /// Whether a target's events are believed. One whose are not is known by our own decisions, and its stream is fetched
    /// anew. Unknown targets are ignored.
    pub fn trust(&self, target: Target, trusted: bool) {
        self.board.trust(target, trusted);
    }

    /// What the engines' own counters of their prefix caches last said (at most some 10 s ago), by target. Engines that do
    /// not tell are left out.
    pub fn prefix_cache_counters(&self) -> HashMap<Target, PrefixCacheCounters> {
        let mut counters = HashMap::new();
        self.board.each(|entry| {
            let worker = entry.view.id;
            counters.extend(entry.prefix_cache.iter().map(|(rank, told)| (Target { worker, rank: *rank }, *told)));
        });
        counters
    }

    /// How often the publisher of each event stream was found to be another process than before, by target.
    pub fn stream_restarts(&self) -> HashMap<Target, u64> {
        let mut restarts = HashMap::new();
        self.board.each(|entry| {
            let resets = |target: Target| Some((target, entry.stream_of(target.rank)?.source.counters().resets));
            restarts.extend(entry.view.targets().filter_map(resets));
        });
        restarts
    }

    /// How the view of prefixes is configured.
    pub fn kv_cache_index(&self) -> &config::KvCacheIndex {
        &self.kv_cache_index
    }

    /// The view of prefixes; `None`: the configuration wants none.
    pub fn prefixes(&self) -> Option<&Prefixes> {
        self.prefixes.as_ref()
    }

    /// Every event stream, as `GET /admin/streams` shows it: of blocks in the order of workers and ranks, then of
    /// prefixes.
    pub fn streams(&self) -> Vec<event_sources::StreamReport> {
        let mut reports = Vec::new();
        self.board.each(|entry| {
            for stream in &entry.streams {
                let before = reports.len();
                reports.extend(stream.source.reports());
                if reports.len() == before {
                    // Nobody has said anything yet: that is shown too.
                    reports.push(stream.source.report());
                }
            }
        });
        reports.extend(self.prefixes.iter().flat_map(Prefixes::streams).map(|(report, _)| report));
        reports
    }

    /// Stops and awaits every supervisor and every stream. A second call returns at once.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        if let Some(prefixes) = &self.prefixes {
            prefixes.stop().await;
        }
        let supervisors = std::mem::take(&mut *self.supervisors.lock());
        for supervisor in supervisors {
            if let Err(error) = supervisor.await {
                tracing::error!(%error, "a worker's supervisor ended with a panic");
            }
        }
    }
}

/// One entry and one supervisor's orders per configured worker, before anything is known of it.
pub(crate) fn first_entries(parts: &FleetParts) -> Result<(Vec<Entry>, Vec<Orders>), StartError> {
    let mut urls = Vec::with_capacity(parts.workers.len());
    let mut trusts = Trusts::default();
    for worker in &parts.workers {
        let url: WorkerUrl =
            worker.url.parse().map_err(|error| StartError::Url { worker: worker.name.clone(), error })?;
        let believing = trusts.attach(url, &worker.tls);
        urls.push(believing.map_err(|error| StartError::Trust { worker: worker.name.clone(), error })?);
    }
    let mut hosts: HashMap<Option<String>, usize> = HashMap::new();
    for url in &urls {
        *hosts.entry(url.host().map(str::to_owned)).or_default() += 1;
    }
    let settings = health_settings(&parts.health_checks, &parts.circuit_breaker);
    let mut entries = Vec::new();
    let mut orders = Vec::new();
    for ((number, worker), url) in (0u32..).zip(&parts.workers).zip(urls) {
        let shared = hosts.get(&url.host().map(str::to_owned)).is_some_and(|workers| *workers > 1);
        let order = orders_for(WorkerId(number), worker, parts, url, shared);
        let view = first_view(&order, worker, &parts.clock);
        entries.push(Entry::new(view, Health::new(settings), order.streams.wanted()));
        orders.push(order);
    }
    Ok((entries, orders))
}

fn orders_for(id: WorkerId, worker: &config::Worker, parts: &FleetParts, url: WorkerUrl, shared_host: bool) -> Orders {
    let checks = &parts.health_checks;
    Orders {
        id,
        name: worker.name.as_str().into(),
        asker: Asker::new(url.clone(), worker.api_key.as_ref(), checks.timeout),
        health_check: HealthCheck { own: worker.health_check.clone(), global_endpoint: checks.endpoint.clone() },
        checks_enabled: checks.enabled,
        engine: worker.engine,
        only_models: worker.models.iter().map(|id| id.as_str().into()).collect(),
        block_size: worker.block_size,
        dp_ranks: worker.dp_ranks.map(std::num::NonZeroU32::get),
        streams: StreamSettings {
            own: worker.kv_events.clone(),
            all: parts.kv_events.clone(),
            host_is_its_own: !shared_host,
            bound_alone: parts.workers.iter().filter(|other| bound_alike(worker, other)).count() <= 1,
            url,
            api_key: worker.api_key.clone(),
            block_size: worker.block_size,
            scheme: parts.scheme,
        },
        connect_timeout: parts.connect_timeout,
        scrape_every: SCRAPE_EVERY,
    }
}

/// Whether two workers connect to one socket of ours with topics that do not tell them apart; also a worker and itself.
fn bound_alike(one: &config::Worker, other: &config::Worker) -> bool {
    let (one, other) = (&one.kv_events, &other.kv_events);
    one.bind && other.bind && one.endpoint == other.endpoint && one.topic == other.topic
}

fn first_view(order: &Orders, worker: &config::Worker, clock: &net::Clock) -> WorkerView {
    let assumed = || BlockSize::new(ASSUMED_BLOCK).expect("the assumed block size lies in the range of block sizes");
    WorkerView {
        id: order.id,
        name: Arc::clone(&order.name),
        url: order.asker.url().clone(),
        verified: !worker.tls.insecure_skip_verify,
        engine: worker.engine.unwrap_or(Engine::Generic),
        version: None,
        state: WorkerState::Unknown,
        since: clock.wall(),
        models: Vec::new(),
        loras: Vec::new(),
        namespace_model: None,
        role: worker.role,
        bootstrap_port: worker.bootstrap_port,
        weight: worker.weight,
        block_size: worker.block_size.unwrap_or_else(assumed),
        block_size_known: worker.block_size.is_some(),
        ranks: vec![RankView::default(); order.dp_ranks.unwrap_or(1) as usize],
        api_key: worker.api_key.clone(),
        num_blocks: None,
        allow_tiers: worker.allow_tiers.clone(),
        load: EngineLoad::default(),
        ended: 0,
        last_error: None,
    }
}

fn health_settings(checks: &config::HealthChecks, breaker: &config::CircuitBreaker) -> HealthSettings {
    HealthSettings {
        interval: checks.interval,
        unhealthy_threshold: checks.unhealthy_threshold.get(),
        healthy_threshold: checks.healthy_threshold.get(),
        warmup_interval: checks.warmup_check_interval,
        max_warmup: checks.max_warmup_duration,
        knock_first: checks.recovery_interval,
        knock_longest: checks.recovery_max_interval,
        eject_after: breaker.consecutive_failures.get(),
        eject_for: breaker.ejection,
    }
}
