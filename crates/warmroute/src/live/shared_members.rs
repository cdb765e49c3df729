//! Workers that register with any replica: what operators change here is told to the others, and
//! what was changed there is applied here.

use std::{sync::Arc, time::Duration};

use admin::{NamedWorker, WorkerRejection};
use config::Problem;
use fleet::WorkerState;
use registrations::{
    Refusal, Registration, RegistrationSink, RegistrationSync, Registrations, WorkerChange,
};
use supervision::supervise;
use tokio::task::JoinSet;

use super::{
    LiveConfig, LiveState, SourceTexts,
    control::may_be_an_engine,
    members::{MemberTable, SharedEntry, name_of},
};

/// The workers that replicas share, if they share any; else all calls do nothing.
#[derive(Debug)]
pub(crate) struct SharedMembers(Option<RegistrationSync>);

impl SharedMembers {
    pub(crate) fn new(sync: Option<RegistrationSync>) -> Self {
        Self(sync)
    }

    /// Returns whether replicas share workers.
    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Refuses a worker that cannot be shared, and a new one with the name of a registered one,
    /// though this router does not use that.
    pub(super) fn check(&self, worker: &NamedWorker, replace: bool) -> Result<(), WorkerRejection> {
        let Some(sync) = &self.0 else { return Ok(()) };
        let name = worker.name.clone().or_else(|| name_of(&worker.entry));
        // A worker without a name is refused with its reason later.
        let Some(name) = name else { return Ok(()) };
        if !replace && sync.registrations.is_registered(&name) {
            return Err(WorkerRejection::Exists(name));
        }
        let checked = sync.registrations.check(&name, &worker.entry);
        checked.map_err(|error| {
            let problem = Problem::bad_value("workers", &name, &error.to_string());
            WorkerRejection::Problems(vec![problem])
        })
    }

    /// Marks a worker of the table as shared.
    pub(super) fn mark(&self, members: &mut MemberTable, name: &str) {
        if self.is_on() {
            members.share(name);
        }
    }

    /// Tells the other replicas of a worker that registered here, if it is shared.
    pub(super) fn register(&self, members: &MemberTable, name: &str, lease: Option<Duration>) {
        if let (Some(sync), Some(entry)) = (&self.0, members.shared_entry(name)) {
            let entry = Arc::new(entry.clone());
            let registration = Registration { entry, lease };
            sync.registrations.register(name, registration);
        }
    }

    /// Removes a worker everywhere; returns whether it was registered with any replica.
    pub(super) fn unregister(&self, name: &str) -> bool {
        let sync = self.0.as_ref();
        sync.is_some_and(|sync| sync.registrations.unregister(name))
    }

    pub(super) fn set_drained(&self, name: &str, drained: bool) {
        if let Some(sync) = &self.0 {
            sync.registrations.set_drained(name, drained);
        }
    }

    /// Shares the workers of the state file.
    pub(super) fn restore(&self, mut sources: SourceTexts) -> SourceTexts {
        if let Some(sync) = &self.0 {
            for (name, entry) in sources.members_mut().share_all() {
                let entry = Arc::new(entry);
                let registration = Registration { entry, lease: None };
                sync.registrations.restore(&name, registration);
            }
        }
        sources
    }

    /// Waits until this router has what the replicas' bucket had, if their bus is there.
    pub(super) async fn first_read(&self) {
        if let Some(sync) = &self.0
            && sync.connection.client().is_some()
        {
            sync.registrations.first_read().await;
        }
    }
}

/// Starts the task that follows the other replicas, if there is a bus.
pub(super) fn follow(live: &Arc<LiveConfig>, tasks: &mut JoinSet<()>) {
    let Some(sync) = live.parts.shared.0.clone() else {
        return;
    };
    let sink: Arc<dyn RegistrationSink> = Arc::new(ReplicaSink(Arc::clone(live)));
    // After a panic the bucket is read again from its beginning.
    tasks.spawn(async move {
        supervise("registrations", || sync.run(Arc::clone(&sink))).await;
    });
}

/// Applies what other replicas changed to this router's workers.
#[derive(Debug)]
struct ReplicaSink(Arc<LiveConfig>);

impl RegistrationSink for ReplicaSink {
    fn apply(&self, registrations: &Registrations) {
        let live = &*self.0;
        let state = &mut *live.state.lock();
        // Under the lock, so that no call of this router comes between.
        let changes = registrations.changes();
        let new: Vec<&WorkerChange> = changes
            .iter()
            .filter(|change| change.is_new_registration)
            .collect();
        let mut outcomes = live.share(state, &new).into_iter();
        for change in changes {
            let outcome = match change.is_new_registration {
                true => outcomes.next().unwrap_or(Err(Refusal::BadEntry)),
                false => Ok(()),
            };
            if change.wanted.drained != change.was_drained {
                live.parts.fleet.drain(&change.name, change.wanted.drained);
                let drained = change.wanted.drained;
                tracing::info!(
                    worker = change.name,
                    drained,
                    "drained or resumed at a replica"
                );
            }
            registrations.applied(change, outcome);
        }
    }

    fn drain(&self, workers: &[String]) {
        let fleet = &self.0.parts.fleet;
        let snapshot = fleet.snapshot();
        for name in workers {
            let worker = snapshot.worker_named(name);
            if worker.is_some_and(|it| it.health.state != WorkerState::Draining) {
                fleet.drain(name, true);
            }
        }
    }
}

impl LiveConfig {
    /// Applies registrations of other replicas: all at once, or each alone if that fails.
    fn share(&self, state: &mut LiveState, changes: &[&WorkerChange]) -> Vec<Result<(), Refusal>> {
        if changes.is_empty() {
            return Vec::new();
        }
        match self.share_together(state, changes) {
            Ok(outcomes) => outcomes,
            Err(_) if changes.len() > 1 => {
                let alone = changes
                    .iter()
                    .flat_map(|change| self.share(state, &[*change]));
                alone.collect()
            }
            Err(_) => vec![Err(Refusal::BadEntry)],
        }
    }

    fn share_together(
        &self,
        state: &mut LiveState,
        changes: &[&WorkerChange],
    ) -> Result<Vec<Result<(), Refusal>>, WorkerRejection> {
        self.change_members_of(state, "replicas", |members, in_force| {
            let share = |change: &&WorkerChange| {
                let name = &change.name;
                match &change.wanted.registration {
                    None => {
                        members.unshare(name);
                        Ok(())
                    }
                    Some(registration) => {
                        let entry = &registration.entry;
                        may_be_an_engine(entry).map_err(|_| Refusal::Forbidden)?;
                        let leased = registration.lease.is_some();
                        let entry = SharedEntry {
                            name,
                            entry,
                            leased,
                        };
                        members.share_entry(entry, in_force)
                    }
                }
            };
            Ok(changes.iter().map(share).collect())
        })
    }
}
