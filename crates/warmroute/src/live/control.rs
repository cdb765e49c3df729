//! The changes that operators may make, as the admin API calls them.

use std::sync::{Arc, atomic::Ordering};

use admin::{Control, DrainRequest, NamedWorker, WorkerRejection};
use api::{HistoryEntry, ReloadOutcome};
use config::Settings;

use super::{LiveConfig, entry_reach};

impl Control for LiveConfig {
    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.current.lock())
    }

    fn reload(&self, dry_run: bool) -> ReloadOutcome {
        self.reload_because("admin", dry_run)
    }

    fn rollback(&self, id: u64) -> Option<ReloadOutcome> {
        let state = &mut *self.state.lock();
        let mut sources = state.history.sources_of(id)?;
        // Workers discovered meanwhile are not part of the configuration.
        sources
            .members_mut()
            .copy_discovered(state.sources.members());
        sources.members_mut().copy_shared(state.sources.members());
        sources.members_mut().copy_leases(state.sources.members());
        // A key that was revoked since stays revoked.
        let settings = sources.settings_with_keys();
        let reloaded = self.take(state, sources, settings, "admin");
        if reloaded.applied {
            self.save_members(state);
        }
        Some(reloaded)
    }

    fn history(&self) -> Vec<HistoryEntry> {
        self.state.lock().history.entries()
    }

    fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    fn add_worker(
        &self,
        worker: NamedWorker,
        replace: bool,
    ) -> Result<(String, bool), WorkerRejection> {
        entry_reach::check(&worker.entry, &self.settings())?;
        let now = self.parts.clock.run_time();
        #[cfg(feature = "nats")]
        let lease = worker.lease_ttl;
        let state = &mut *self.state.lock();
        #[cfg(feature = "nats")]
        self.parts.shared.check(&worker, replace)?;
        let (name, replaced) = self.change_members_of(state, "admin", |members, in_force| {
            let taken = members.put(worker, replace, in_force, now)?;
            #[cfg(feature = "nats")]
            self.parts.shared.mark(members, &taken.0);
            Ok(taken)
        })?;
        #[cfg(feature = "nats")]
        self.parts
            .shared
            .register(state.sources.members(), &name, lease);
        Ok((name, replaced))
    }

    fn remove_worker(&self, name: &str) -> Result<bool, WorkerRejection> {
        let state = &mut *self.state.lock();
        // The removal of a worker of the file or of discovery changes only this router.
        #[cfg(feature = "nats")]
        let is_shared = !state
            .sources
            .members()
            .is_of_other_source(name, &self.settings());
        let removed = self.change_members_of(state, "admin", |members, in_force| {
            Ok(members.remove(name, in_force))
        })?;
        #[cfg(feature = "nats")]
        let removed = (is_shared && self.parts.shared.unregister(name)) || removed;
        Ok(removed)
    }

    fn drain_worker(&self, name: &str, drain: DrainRequest) -> bool {
        let drained = drain == DrainRequest::Drain;
        #[cfg(feature = "nats")]
        if self.parts.shared.is_on() {
            // In the same order as the changes of other replicas.
            let _state = self.state.lock();
            // A drain outlives its worker, so a resume may come when the worker is gone.
            let is_known = self.parts.fleet.drain(name, drained).is_some()
                || (!drained && self.parts.shared.is_drained(name));
            if is_known {
                self.parts.shared.set_drained(name, drained);
            }
            return is_known;
        }
        self.parts.fleet.drain(name, drained).is_some()
    }
}
