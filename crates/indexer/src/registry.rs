//! The publishers that are followed now, and whose blocks theirs are.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use event_sources::{BlockSink, SourceHandle};
use kv_blocks::{DpRank, Target, WorkerId};
use kv_index::KvIndex;

use crate::{
    error::{CallError, CallErrorKind},
    registration::{Registration, RegistrationKey},
    stores::{StoreMembership, Stores},
};

/// Registrations at once. One more is refused.
pub(crate) const MOST: usize = 4096;

/// Numbers from here on are ours; those of a router's own workers begin at 0. Neither are used twice.
const FIRST_WORKER: u32 = 1 << 31;

/// A rank of an instance. Each has a number of its own in the index, so that what it was credited with can be removed
/// without touching other ranks of its instance.
#[derive(Debug)]
pub(crate) struct InstanceRank {
    pub(crate) target: Target,
    /// The engine's own publisher.
    pub(crate) engine: Option<(Registration, SourceHandle)>,
    /// A store beside it, which may be others' too. Dropped, it counts for this seat no longer.
    pub(crate) store: Option<(Registration, StoreMembership)>,
}

impl InstanceRank {
    /// An empty seat, with the number after those that were `given`.
    fn new(given: &mut u32, rank: u32) -> Result<Self, CallError> {
        let Some(worker) = FIRST_WORKER.checked_add(*given) else {
            return Err(CallError::new(
                CallErrorKind::Full,
                "all numbers for publishers were used: start the indexer again",
            ));
        };
        *given += 1;
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

    /// What was registered for it, each with its stream.
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

/// All of them, by tenant, instance and rank.
#[derive(Debug)]
pub(crate) struct Registry {
    ranks: BTreeMap<RegistrationKey, InstanceRank>,
    stores: Stores,
    registered: usize,
    given: u32,
}

impl Registry {
    pub(crate) fn new(index: Arc<KvIndex>) -> Self {
        Self {
            ranks: BTreeMap::new(),
            stores: Stores::new(index),
            registered: 0,
            given: 0,
        }
    }

    /// Takes a publisher in; an equal registration again changes nothing. `follow` starts following an engine's for a
    /// target, or a store's for whoever it is of.
    pub(crate) fn register(
        &mut self,
        registration: Registration,
        follow: impl FnOnce(&Registration, UpdateRoute) -> SourceHandle,
    ) -> Result<(), CallError> {
        if let Some(known) = self
            .ranks
            .get(&registration.key)
            .and_then(|seat| seat.of_kind(&registration))
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
        let seat = match self.ranks.entry(registration.key.clone()) {
            Entry::Occupied(seat) => seat.into_mut(),
            Entry::Vacant(place) => {
                place.insert(InstanceRank::new(&mut self.given, registration.key.rank)?)
            }
        };
        let target = seat.target;
        if registration.publisher.is_store() {
            let store = self.stores.join(&registration, target, |sink| {
                follow(&registration, UpdateRoute::Store(sink))
            });
            seat.store = Some((registration, store));
        } else {
            let source = follow(&registration, UpdateRoute::Engine(target));
            seat.engine = Some((registration, source));
        }
        self.registered += 1;
        Ok(())
    }

    /// Takes out all that is registered under a key.
    pub(crate) fn unregister(&mut self, key: &RegistrationKey) -> Result<InstanceRank, CallError> {
        let seat = self.ranks.remove(key).ok_or_else(|| {
            let message = format!(
                "{} is not registered: GET /services lists what is",
                key.text()
            );
            CallError::new(CallErrorKind::Unknown, message).at("instance_id")
        })?;
        self.registered -= seat.registrations().count();
        Ok(seat)
    }

    /// Follows again whose streams ended by themselves, with a panic. What an engine said until then is `forget`ten: nobody
    /// hears what becomes of it.
    pub(crate) fn follow_ended(
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

    /// A tenant's seats, all or those of one instance.
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

    /// All seats.
    pub(crate) fn all(&self) -> impl Iterator<Item = &InstanceRank> {
        self.ranks.values()
    }
}

/// Where a publisher's updates go.
pub(crate) enum UpdateRoute {
    /// To the index, as this target's.
    Engine(Target),
    /// To all targets that the store is registered for.
    Store(Arc<dyn BlockSink>),
}

fn conflict(registration: &Registration, field: &'static str) -> CallError {
    let message = format!(
        "{} is registered with another {field}: unregister it first",
        registration.key.text()
    );
    CallError::new(CallErrorKind::Conflict, message).at(field)
}
