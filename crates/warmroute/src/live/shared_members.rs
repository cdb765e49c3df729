//! Workers that register with any replica: what operators change here is told to the others, and
//! what was changed there is applied here.

use std::{sync::Arc, time::Duration};

use admin::{Control as _, NamedWorker, WorkerRejection};
use config::{Problem, Settings};
use fleet::WorkerState;
use registrations::{
    Refusal, Registration, RegistrationRefusal, RegistrationSink, RegistrationSync, Registrations,
    WorkerChange,
};
use supervision::supervise;
use tokio::task::JoinSet;

use super::{
    LiveConfig, LiveState, SourceTexts, entry_reach,
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

    /// Removes a worker everywhere, or its drain; returns whether the replicas knew it.
    pub(super) fn unregister(&self, name: &str) -> bool {
        let sync = self.0.as_ref();
        sync.is_some_and(|sync| sync.registrations.unregister(name))
    }

    /// Returns whether operators drained a worker, also one that this router does not have.
    pub(super) fn is_drained(&self, name: &str) -> bool {
        let sync = self.0.as_ref();
        sync.is_some_and(|sync| sync.registrations.is_drained(name))
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
        let new = changes.iter().filter(|change| change.is_new_registration);
        let new: Vec<&WorkerChange> = new.collect();
        let mut outcomes = live.share(state, &new).into_iter();
        for change in changes {
            let outcome = match change.is_new_registration {
                true => outcomes.next().unwrap_or(Ok(())),
                false => Ok(()),
            };
            let (name, drained) = (&change.name, change.wanted.drained);
            if drained != change.was_drained && live.parts.fleet.drain(name, drained).is_some() {
                tracing::info!(worker = name, drained, "drained or resumed at a replica");
            }
            registrations.applied(change, outcome);
        }
    }

    fn drain(&self, registrations: &Registrations) {
        let live = &*self.0;
        // Under the lock, so that no resume comes between.
        let _state = live.state.lock();
        let fleet = &live.parts.fleet;
        let snapshot = fleet.snapshot();
        for name in registrations.drained() {
            let worker = snapshot.worker_named(&name);
            if worker.is_some_and(|it| it.health.state != WorkerState::Draining) {
                fleet.drain(&name, true);
            }
        }
    }
}

impl LiveConfig {
    /// Applies registrations of other replicas, all at once; if there is a problem, those without
    /// one. Returns an outcome for each.
    fn share(
        &self,
        state: &mut LiveState,
        changes: &[&WorkerChange],
    ) -> Vec<Result<(), RegistrationRefusal>> {
        let mut sources = state.sources.clone();
        let in_force = self.settings();
        let members = sources.members_mut();
        let outcomes = changes.iter().map(|it| share_one(members, &in_force, it));
        let outcomes = outcomes.collect();
        if sources == state.sources {
            return outcomes;
        }
        let settings = sources.settings();
        // Checked first: what another router took in is no failed change of this one.
        let problems = match self.examine(settings.clone()) {
            Ok(_) => {
                let taken = self.take(state, sources, settings, "replicas");
                if taken.applied {
                    self.save_members(state);
                    return outcomes;
                }
                taken.problems
            }
            Err(problems) => problems,
        };
        let (first, rest) = changes.split_at(changes.len() / 2);
        if first.is_empty() {
            let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return vec![Err(RegistrationRefusal {
                reason: Refusal::BadEntry,
                detail: texts.join("; "),
            })];
        }
        let mut outcomes = self.share(state, first);
        outcomes.extend(self.share(state, rest));
        outcomes
    }
}

fn share_one(
    members: &mut MemberTable,
    in_force: &Settings,
    change: &WorkerChange,
) -> Result<(), RegistrationRefusal> {
    let name = &change.name;
    let Some(registration) = &change.wanted.registration else {
        members.unshare(name);
        return Ok(());
    };
    let entry = &registration.entry;
    if let Err(WorkerRejection::Forbidden(detail)) = entry_reach::check(entry, in_force) {
        let reason = Refusal::Forbidden;
        return Err(RegistrationRefusal { reason, detail });
    }
    let leased = registration.lease.is_some();
    let shared = members.share_entry(
        SharedEntry {
            name,
            entry,
            leased,
        },
        in_force,
    );
    shared.map_err(|reason| RegistrationRefusal {
        reason,
        detail: match reason {
            Refusal::Configured => {
                "the file or discovery has a worker of that name, which keeps it also if it was \
                 removed here"
            }
            _ => "there are too many workers",
        }
        .to_owned(),
    })
}
