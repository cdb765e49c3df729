//! The registered publishers, and the targets that their blocks count for.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use event_sources::{BlockSink, SourceHandle};
use kv_blocks::{DpRank, HashScheme, Target, WorkerId};
use kv_index::KvIndex;

use crate::{
    error::{CallError, CallErrorKind},
    registration::{Registration, RegistrationKey},
    stores::{StoreMembership, Stores},
};

/// Most registrations at once. A further one is refused.
pub(crate) const MOST: usize = 4096;

/// First worker number of registered instances; the router's own workers count from 0. No number is
/// used twice.
const FIRST_WORKER: u32 = 1 << 31;

/// A rank of an instance. It has its own number in the index, so that its blocks can be removed
/// without touching other ranks of the instance.
#[derive(Debug)]
pub(crate) struct InstanceRank {
    pub(crate) target: Target,
    /// Publisher of the engine itself.
    pub(crate) engine: Option<(Registration, SourceHandle)>,
    /// Store beside the engine, possibly shared with other ranks. Dropping it ends its credit for
    /// this rank.
    pub(crate) store: Option<(Registration, StoreMembership)>,
}

impl InstanceRank {
    /// Returns an empty rank with the next number after the `assigned` ones.
    fn new(assigned: &mut u32, rank: u32) -> Result<Self, CallError> {
        let Some(worker) = FIRST_WORKER.checked_add(*assigned) else {
            return Err(CallError::new(
                CallErrorKind::Full,
                "all numbers for publishers were used: start the indexer again",
            ));
        };
        *assigned += 1;
        let target = Target {
            worker: WorkerId(worker),
            rank: DpRank(rank),
        };
        Ok(Self {
            target,
            engine: None,
            store: None,
        })
    }

    /// Returns the rank's registrations, each with its stream.
    pub(crate) fn registrations(&self) -> impl Iterator<Item = (&Registration, &SourceHandle)> {
        let engine = self
            .engine
            .iter()
            .map(|(registration, source)| (registration, source));
        engine.chain(
            self.store
                .iter()
                .map(|(registration, store)| (registration, store.source())),
        )
    }

    pub(crate) fn key(&self) -> Option<&RegistrationKey> {
        self.registrations()
            .next()
            .map(|(registration, _)| &registration.key)
    }

    fn of_kind(&self, registration: &Registration) -> Option<&Registration> {
        if registration.publisher.is_store() {
            self.store.as_ref().map(|(known, _)| known)
        } else {
            self.engine.as_ref().map(|(known, _)| known)
        }
    }
}

/// All registered ranks, by tenant, instance and rank.
#[derive(Debug)]
pub(crate) struct Registry {
    ranks: BTreeMap<RegistrationKey, InstanceRank>,
    stores: Stores,
    registered: usize,
    assigned: u32,
}

impl Registry {
    pub(crate) fn new(index: Arc<KvIndex>, scheme: HashScheme) -> Self {
        Self {
            ranks: BTreeMap::new(),
            stores: Stores::new(index, scheme),
            registered: 0,
            assigned: 0,
        }
    }

    /// Adds a publisher; an equal registration again changes nothing. `follow` starts the source of
    /// an engine for its target, or of a store for all its targets.
    pub(crate) fn register(
        &mut self,
        registration: Registration,
        follow: impl FnOnce(&Registration, UpdateRoute) -> SourceHandle,
    ) -> Result<(), CallError> {
        if let Some(known) = self
            .ranks
            .get(&registration.key)
            .and_then(|instance_rank| instance_rank.of_kind(&registration))
        {
            return known
                .difference(&registration)
                .map_or(Ok(()), |field| Err(conflict(&registration, field)));
        }
        if self.registered >= MOST {
            let message = format!(
                "{MOST} publishers are registered, the most there may be: unregister one first"
            );
            return Err(CallError::new(CallErrorKind::Full, message));
        }
        let instance_rank = match self.ranks.entry(registration.key.clone()) {
            Entry::Occupied(instance_rank) => instance_rank.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(InstanceRank::new(
                &mut self.assigned,
                registration.key.rank,
            )?),
        };
        let target = instance_rank.target;
        if registration.publisher.is_store() {
            let store = self.stores.join(&registration, target, |sink| {
                follow(&registration, UpdateRoute::Store(sink))
            });
            instance_rank.store = Some((registration, store));
        } else {
            let source = follow(&registration, UpdateRoute::Engine(target));
            instance_rank.engine = Some((registration, source));
        }
        self.registered += 1;
        Ok(())
    }

    /// Removes all registrations under a key.
    pub(crate) fn unregister(&mut self, key: &RegistrationKey) -> Result<InstanceRank, CallError> {
        let instance_rank = self.ranks.remove(key).ok_or_else(|| {
            let message = format!(
                "{} is not registered: GET /services lists what is",
                key.text()
            );
            CallError::new(CallErrorKind::Unknown, message).at("instance_id")
        })?;
        self.registered -= instance_rank.registrations().count();
        Ok(instance_rank)
    }

    /// Restarts streams that ended by themselves, with a panic. Their engines' blocks are dropped
    /// by `forget`, because changes since then were missed.
    pub(crate) fn restart_ended(
        &mut self,
        forget: impl Fn(Target),
        mut follow: impl FnMut(&Registration, UpdateRoute) -> SourceHandle,
    ) {
        for InstanceRank {
            target,
            engine,
            store,
        } in self.ranks.values_mut()
        {
            if let Some((registration, source)) =
                engine.as_mut().filter(|(_, source)| source.ended())
            {
                forget(*target);
                *source = follow(registration, UpdateRoute::Engine(*target));
            }
            if let Some((registration, store)) =
                store.as_mut().filter(|(_, store)| store.source().ended())
            {
                *store = self.stores.join(registration, *target, |sink| {
                    follow(registration, UpdateRoute::Store(sink))
                });
            }
        }
    }

    /// Returns the ranks of a tenant, or only those of one instance.
    pub(crate) fn of_tenant<'a>(
        &'a self,
        tenant: &Arc<str>,
        instance: Option<&'a Arc<str>>,
    ) -> impl Iterator<Item = (&'a RegistrationKey, &'a InstanceRank)> {
        let first = RegistrationKey {
            tenant: Arc::clone(tenant),
            instance: instance.cloned().unwrap_or_default(),
            rank: 0,
        };
        let tenant = Arc::clone(tenant);
        let within = move |key: &RegistrationKey| {
            key.tenant == tenant && instance.is_none_or(|instance| key.instance == *instance)
        };
        self.ranks
            .range(first..)
            .take_while(move |(key, _)| within(key))
    }

    /// Returns all ranks.
    pub(crate) fn all(&self) -> impl Iterator<Item = &InstanceRank> {
        self.ranks.values()
    }
}

/// Destination of a publisher's updates.
pub(crate) enum UpdateRoute {
    /// The index, for this target.
    Engine(Target),
    /// All targets that the store is registered for.
    Store(Arc<dyn BlockSink>),
}

fn conflict(registration: &Registration, field: &'static str) -> CallError {
    let message = format!(
        "{} is registered with another {field}: unregister it first",
        registration.key.text()
    );
    CallError::new(CallErrorKind::Conflict, message).at(field)
}
