//! The state that all requests share, by stage, and the one by the current configuration.

use std::sync::{Arc, atomic::Ordering};

use arc_swap::ArcSwap;
use config::Settings;
use fleet::Fleet;
use kv_blocks::WorkerId;
use net::Clock;
use proxy::ConnectionPools;
use supervision::contain;

use crate::{
    ids::IdGenerator,
    lifecycle::Lifecycle,
    model_lists::ModelListSettings,
    models::ModelCatalog,
    process_limits::ProcessLimits,
    request::{
        accept::Admission, decide::Decider, generation::GenerationStages, preprocess::Preprocessor,
        record::Recorder, reply_cache::ReplyCache,
    },
    reservations::{CallTime, Reservations},
};

/// The state that all requests share: the parts of each stage, and the settings in force.
///
/// A request keeps the gateway that it began with ([`CurrentGateway`]): it ends by the rules
/// that it began by.
#[derive(Clone, Debug)]
pub struct Gateway {
    pub(crate) edge: Edge,
    pub(crate) reply_cache: ReplyCache,
    pub(crate) generation: GenerationStages,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) reservations: Arc<Reservations>,
    pub(crate) lifecycle: Arc<Lifecycle>,
}

/// The parts before the reply cache.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) admission: Admission,
    pub(crate) preprocessor: Preprocessor,
    pub(crate) catalog: ModelCatalog,
    pub(crate) ids: Arc<IdGenerator>,
}

impl Gateway {
    /// Returns a gateway with other settings that shares load, caches, connections and counters
    /// with this one. Keys that take effect at the next start (hashing, clusters, shared prefixes,
    /// the reservation TTL, the tokenization budget) have no effect here.
    #[must_use]
    pub fn with_settings(&self, settings: &Settings, process: ProcessLimits) -> Self {
        let mut next = self.clone();
        let coalesces_for = settings.cache.deduplication().unwrap_or_default();
        self.reply_cache.coalescer.reconfigure(coalesces_for);
        if self.edge.admission.tenants.reconfigure(&settings.tenants) {
            tracing::warn!(
                "no key is left in tenants.api_keys, so no request is accepted: add one, or restart to open the API"
            );
        }
        let lists = ModelListSettings::of(settings);
        self.edge.catalog.lists.reconfigure(lists);
        next.apply(settings, process);
        next
    }

    /// Returns the clock.
    pub(crate) fn clock(&self) -> Clock {
        self.recorder.clock
    }

    /// Returns the workers.
    pub(crate) fn fleet(&self) -> &Arc<Fleet> {
        &self.recorder.workers.fleet
    }

    /// Returns the stage that chooses targets.
    pub(crate) fn decider(&self) -> &Decider {
        &self.generation.delivery.queue.decider
    }

    fn pools(&self) -> &ConnectionPools {
        &self.recorder.workers.pools
    }

    /// Returns the number of requests of all routes that have not ended.
    pub fn running_requests(&self) -> u64 {
        self.recorder.running.load(Ordering::Relaxed)
    }

    /// Records whether the configuration on disk was refused, for `/health`.
    pub fn set_config_refused(&self, refused: bool) {
        self.lifecycle
            .config_refused
            .store(refused, Ordering::Relaxed);
    }

    /// Records that clients can no longer connect; probes fail from now on.
    pub(crate) fn fail(&self) {
        self.lifecycle.failed.send_replace(true);
    }

    /// Expires what has timed out: worker cooldowns, idle connections to workers, and reservations.
    pub(crate) fn end_overdue(&self) {
        let at = CallTime::now(self.clock());
        self.decider().cooldowns.tick(at.now);
        self.pools().close_idle(at.now);
        self.reservations.tick(at, &self.fleet().snapshot());
    }

    /// Removes workers that are no longer configured and have no work left.
    pub(crate) fn remove_drained(&self) {
        for worker in self
            .fleet()
            .leaving()
            .into_iter()
            .filter(|worker| self.in_flight_on_worker(*worker) == 0)
        {
            // In its own task, since a stream takes its time to end; a second task for the same
            // worker finds nothing to do.
            let (fleet, router, pools) = (
                Arc::clone(self.fleet()),
                Arc::clone(&self.decider().router),
                self.pools().clone(),
            );
            runtime::spawn(contain("worker_removal", async move {
                fleet.remove(worker).await;
                router.forget(worker);
                pools.close_worker(worker);
            }));
        }
    }

    /// Returns the requests in flight on a worker, over all its ranks.
    pub fn in_flight_on_worker(&self, worker: WorkerId) -> u64 {
        let snapshot = self.fleet().snapshot();
        let targets = snapshot
            .worker(worker)
            .into_iter()
            .flat_map(|worker| worker.targets());
        let router = &self.decider().router;
        targets
            .map(|target| u64::from(router.load(target).in_flight))
            .sum()
    }
}

/// The gateway for new requests. A running request keeps the one that it began with.
#[derive(Debug)]
pub struct CurrentGateway(ArcSwap<Gateway>);

impl CurrentGateway {
    /// Creates it with this gateway.
    pub fn new(gateway: Gateway) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(gateway)))
    }

    /// Returns the gateway for a request that begins now.
    pub fn current(&self) -> Arc<Gateway> {
        self.0.load_full()
    }

    /// Resolves when clients can no longer connect although no drain was requested.
    pub async fn failed(&self) {
        let mut failed = self.current().lifecycle.failed.subscribe();
        // The sender lives as long as any gateway does.
        let _ = failed.wait_for(|failed| *failed).await;
    }

    /// Sets the settings of requests that begin from now on.
    pub fn reconfigure(&self, settings: &Settings, process: ProcessLimits) {
        self.0
            .store(Arc::new(self.current().with_settings(settings, process)));
    }
}
