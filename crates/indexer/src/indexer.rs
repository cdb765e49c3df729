//! The calls of the API without HTTP: effects and results.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    sync::{Arc, Weak},
    time::Duration,
};

use api::{
    GlobalView, OverlapReply, PublisherRegistered, PublisherUnregistered, ServiceReport,
    ServiceReports,
};
use event_sources::{
    BlockSink, Codec, EnvelopeSink, EventDefaults, PollSource, PollSpec, SourceHandle,
    SourceSettings, SourceSpec, ZmqSource,
};
use kv_blocks::{DpRank, HashScheme, Target, WorkerId};
use kv_index::{KvIndex, LabelledPrefix, Overlap};
use net::{Clock, Destinations, WorkerUrl};
use parking_lot::RwLock;
use supervision::supervise;

use crate::{
    ResidentInstance, ResidentInstances,
    body::BodyMemory,
    error::{CallError, CallErrorKind},
    query::OverlapQuery,
    query_reply::{TenantRows, by_target, confirmed},
    registration::{DEFAULT_TENANT, PublisherAddress, Registration, RegistrationKey},
    registry::{InstanceRank, Registry, UpdateRoute},
    views,
};

/// Interval of the check for streams that ended by themselves.
const STREAM_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Placeholder target of a store's stream; its updates go to the targets of its memberships
/// instead.
const NOBODY: Target = Target {
    worker: WorkerId(u32::MAX),
    rank: DpRank(0),
};

/// Returns the targets of a worker.
fn all_ranks(worker: WorkerId) -> RangeInclusive<Target> {
    let of = |rank| Target {
        worker,
        rank: DpRank(rank),
    };
    of(0)..=of(u32::MAX)
}

/// Dependencies of an [`Indexer`].
#[derive(Clone, Debug)]
pub struct IndexerParts {
    /// Index that events update and queries read.
    pub index: Arc<KvIndex>,
    /// Hash scheme of the index.
    pub scheme: HashScheme,
    /// Clock of the process.
    pub clock: Clock,
    /// Addresses that publishers may have.
    pub destinations: Destinations,
    /// Instances besides the registered ones.
    pub residents: ResidentInstances,
}

/// Registered publishers and the index that they fill. Dropping it stops following them.
#[derive(Debug)]
pub struct Indexer {
    parts: IndexerParts,
    registry: RwLock<Registry>,
    pub(crate) bodies: BodyMemory,
}

/// Restarts ended streams at an interval until the indexer is dropped.
async fn watch_streams(weak_indexer: &Weak<Indexer>) {
    loop {
        tokio::time::sleep(STREAM_CHECK_INTERVAL).await;
        let Some(indexer) = weak_indexer.upgrade() else {
            return;
        };
        indexer.restart_ended_streams();
    }
}

impl Indexer {
    /// Starts an indexer without publishers. Spawns a task on the current runtime, which ends after
    /// the indexer is dropped.
    pub fn start(parts: IndexerParts) -> Arc<Self> {
        let indexer = Arc::new(Self::new(parts));
        let weak_indexer = Arc::downgrade(&indexer);
        runtime::spawn(async move { supervise("indexer", || watch_streams(&weak_indexer)).await });
        indexer
    }

    fn new(parts: IndexerParts) -> Self {
        let registry = RwLock::new(Registry::new(Arc::clone(&parts.index), parts.scheme));
        Self {
            parts,
            registry,
            bodies: BodyMemory::default(),
        }
    }

    /// Restarts streams that ended by themselves.
    fn restart_ended_streams(&self) {
        let ended = |instance_rank: &InstanceRank| {
            instance_rank
                .registrations()
                .any(|(_, source)| source.ended())
        };
        if self.registry.read().all().any(ended) {
            tracing::error!(
                "an event stream's task ended by itself: what it said is forgotten, it is started again"
            );
            let forget = |target| self.parts.index.clear(target);
            self.registry
                .write()
                .restart_ended(forget, |registration, to| self.follow(registration, to));
        }
    }

    pub(crate) fn scheme(&self) -> HashScheme {
        self.parts.scheme
    }

    pub(crate) fn destinations(&self) -> &Destinations {
        &self.parts.destinations
    }

    /// Handles `/register`. The source task runs when this returns; `/services` shows whether the
    /// publisher can be reached.
    pub(crate) fn register(
        &self,
        registration: Registration,
    ) -> Result<PublisherRegistered, CallError> {
        let instance = Arc::clone(&registration.key.instance);
        if self
            .residents(&registration.key.tenant)
            .any(|resident| resident.instance == instance)
        {
            let message = format!(
                "{instance:?} is a worker of this router, which follows it: choose another instance_id"
            );
            return Err(CallError::new(CallErrorKind::Conflict, message).at("instance_id"));
        }
        self.registry
            .write()
            .register(registration, |registration, to| {
                self.follow(registration, to)
            })?;
        Ok(PublisherRegistered {
            status: "registered successfully".into(),
            instance_id: instance,
        })
    }

    fn follow(&self, registration: &Registration, to: UpdateRoute) -> SourceHandle {
        tracing::info!(publisher = registration.key.text(), endpoint = %registration.endpoint, "publisher registered");
        let (target, sink, format, defaults): (_, Arc<dyn BlockSink>, _, _) = match to {
            UpdateRoute::Engine(target) => (
                target,
                Arc::new(EnvelopeSink::new(
                    registration.scope(target, self.parts.scheme),
                    Arc::clone(&self.parts.index),
                )) as _,
                Codec::VllmOrStandard,
                registration.defaults(),
            ),
            UpdateRoute::Store(sink) => (NOBODY, sink, Codec::Mooncake, EventDefaults::default()),
        };
        let endpoint = match &registration.endpoint {
            PublisherAddress::Socket(endpoint) => endpoint.clone(),
            PublisherAddress::Polled(url) => return self.poll(registration, target, url.clone()),
        };
        let mut spec = SourceSpec::new(
            target,
            Arc::clone(&registration.key.instance),
            Arc::clone(&registration.model),
            endpoint,
        );
        spec.replay_endpoint
            .clone_from(&registration.replay_endpoint);
        spec.defaults = defaults;
        spec.settings = SourceSettings {
            destinations: self.parts.destinations.clone(),
            format,
            ..SourceSettings::default()
        };
        ZmqSource::spawn_into(spec, sink, self.parts.clock)
    }

    fn poll(&self, registration: &Registration, target: Target, url: WorkerUrl) -> SourceHandle {
        let mut spec = PollSpec::new(
            target.worker,
            Arc::clone(&registration.key.instance),
            Arc::clone(&registration.model),
            url,
        );
        spec.rank = target.rank;
        spec.block_size = registration.block_size;
        PollSource::spawn(spec, Arc::clone(&self.parts.index), self.parts.clock)
    }

    /// Handles `/unregister`. Completes even if the caller stops waiting.
    pub(crate) async fn unregister(
        &self,
        key: RegistrationKey,
    ) -> Result<PublisherUnregistered, CallError> {
        let instance_rank = self.registry.write().unregister(&key)?;
        let index = Arc::clone(&self.parts.index);
        let forgotten = runtime::spawn(async move {
            if let Some((_, source)) = instance_rank.engine {
                source.stop().await;
            }
            drop(instance_rank.store);
            // Nothing is stored for this target any more. Removing many blocks takes a while.
            let _ =
                runtime::spawn_blocking(move || index.remove_worker(instance_rank.target.worker))
                    .await;
        });
        let _ = forgotten.await;
        tracing::info!(publisher = key.text(), "publisher unregistered");
        Ok(PublisherUnregistered {
            status: "unregistered successfully".into(),
            removed_instances: vec![key.text()],
        })
    }

    /// Handles `/query` and `/query_by_hash`: one lookup for all instances.
    pub(crate) fn answer_query(&self, query: &OverlapQuery) -> OverlapReply {
        let found = self
            .parts
            .index
            .lookup(&query.namespace, &query.chain, self.parts.clock.now());
        let found = by_target(found);
        let mut rows = TenantRows::new(query.namespace.block_size);
        let known = self.add_residents(query, &found, &mut rows)
            | self.add_registered(query, &found, &mut rows);
        let mut reply = OverlapReply::default();
        if known {
            query
                .instance
                .iter()
                .for_each(|instance| rows.add_instance(instance));
            let tenant = Arc::clone(&query.tenant);
            reply.0.insert(tenant, rows.into_rows());
        }
        reply
    }

    /// Adds the rows of the router's own workers; returns whether the tenant has any.
    fn add_residents(
        &self,
        query: &OverlapQuery,
        found: &BTreeMap<Target, Overlap>,
        rows: &mut TenantRows,
    ) -> bool {
        // The router's own workers have no registered salt.
        let salted = query.registered_salt.as_ref().is_some_and(Option::is_some);
        let mut known = false;
        for ResidentInstance {
            instance, target, ..
        } in self.residents(&query.tenant)
        {
            known = true;
            if query.instance.as_ref().is_none_or(|only| *only == instance) {
                let overlap = found.get(&target).filter(|_| !salted);
                let overlap = overlap.map(|overlap| (overlap, self.labelled(query, overlap)));
                rows.add(&instance, target.rank, overlap);
            }
        }
        known
    }

    /// Adds the rows of registered instances; returns whether the tenant has any.
    fn add_registered(
        &self,
        query: &OverlapQuery,
        found: &BTreeMap<Target, Overlap>,
        rows: &mut TenantRows,
    ) -> bool {
        let registry = self.registry.read();
        for (key, instance_rank) in registry.of_tenant(&query.tenant, query.instance.as_ref()) {
            let salted = match &query.registered_salt {
                Some(salt) => instance_rank
                    .registrations()
                    .any(|(registration, _)| registration.salt == *salt),
                None => true,
            };
            rows.add(&key.instance, instance_rank.target.rank, None);
            // Envelopes may name further ranks of the publisher.
            let ranks = all_ranks(instance_rank.target.worker);
            for (target, overlap) in found.range(ranks).filter(|_| salted) {
                let overlap = (overlap, self.labelled(query, overlap));
                rows.add(&key.instance, target.rank, Some(overlap));
            }
        }
        registry.of_tenant(&query.tenant, None).next().is_some()
    }

    /// Returns the part of a target's overlap that is on media with unknown names.
    fn labelled(&self, query: &OverlapQuery, overlap: &Overlap) -> LabelledPrefix {
        let prefix = &query.chain[..(confirmed(overlap) as usize).min(query.chain.len())];
        self.parts
            .index
            .labelled_prefix(overlap.target, &query.namespace, prefix)
    }

    /// Returns the names of the registered publishers' workers in the index: the instance, with the
    /// tenant if it is not the default one.
    pub fn names(&self) -> Vec<(WorkerId, Arc<str>)> {
        let registry = self.registry.read();
        let name = |key: &RegistrationKey| match &*key.tenant {
            DEFAULT_TENANT => Arc::clone(&key.instance),
            tenant => format!("{}|{tenant}", key.instance).into(),
        };
        registry
            .all()
            .filter_map(|instance_rank| {
                Some((instance_rank.target.worker, name(instance_rank.key()?)))
            })
            .collect()
    }

    /// Handles `/services`.
    pub(crate) fn services(&self) -> ServiceReports {
        let mut services: Vec<ServiceReport> = self
            .parts
            .residents
            .list()
            .iter()
            .map(views::resident_service)
            .collect();
        services.extend(self.registry.read().all().flat_map(views::services));
        ServiceReports { services }
    }

    /// Handles `/global_view`.
    pub(crate) fn global_view(&self) -> GlobalView {
        let mut view = views::IndexContent::default();
        let blocks = |target| self.parts.index.blocks_per_tier(target);
        for resident in self.parts.residents.list() {
            view.add(views::resident_service(&resident), blocks(resident.target));
        }
        for instance_rank in self.registry.read().all() {
            if let Some((registration, _)) = instance_rank.registrations().next() {
                view.add(registration.report(), blocks(instance_rank.target));
            }
        }
        GlobalView {
            models: view.into_models(),
        }
    }

    /// Returns the router's own workers, which are instances of the default tenant only.
    fn residents(&self, tenant: &Arc<str>) -> impl Iterator<Item = ResidentInstance> {
        if &**tenant == DEFAULT_TENANT {
            self.parts.residents.list()
        } else {
            Vec::new()
        }
        .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use kv_index::IndexSettings;
    use serde_json::json;

    use super::*;
    use crate::{
        field_map::{Encoding, FieldMap},
        registration::REGISTER,
    };

    fn registration(kind: &str) -> Registration {
        let body = json!({
            "endpoint": "tcp://127.0.0.1:1", "type": kind, "modelname": "m", "instance_id": "i", "block_size": 4, "dp_rank": 0,
        });
        let form = FieldMap::read(body.to_string().as_bytes(), Encoding::Json, REGISTER).unwrap();
        Registration::of(&form, &Destinations::Engines).unwrap()
    }

    #[tokio::test]
    async fn streams_that_ended_by_themselves_are_restarted() {
        let indexer = Indexer::new(IndexerParts {
            index: Arc::new(KvIndex::new(IndexSettings::default())),
            scheme: HashScheme::default(),
            clock: Clock::system(),
            destinations: Destinations::Engines,
            residents: ResidentInstances::none(),
        });
        // The source tasks are dropped with their runtime, as after a panic.
        let another = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        {
            let _inside = another.enter();
            indexer.register(registration("vLLM")).unwrap();
            indexer.register(registration("Mooncake")).unwrap();
        }
        let ended = || {
            let registry = indexer.registry.read();
            registry
                .all()
                .flat_map(InstanceRank::registrations)
                .map(|(_, source)| source.ended())
                .collect::<Vec<_>>()
        };
        assert_eq!(ended(), [false, false]);
        tokio::task::spawn_blocking(move || another.shutdown_timeout(Duration::from_secs(60)))
            .await
            .unwrap();
        assert_eq!(ended(), [true, true]);
        indexer.restart_ended_streams();
        assert_eq!(ended(), [false, false]);
    }
}
