//! All supervisors: started, reconfigured and stopped as the configuration changes.
//!
//! **Invariant**: a number is assigned once; a worker is removed from the table only after its
//! supervisor, and with it every stream, has ended.

mod set;

use std::{collections::HashSet, sync::Arc};

use kv_blocks::{HashScheme, WorkerId};
use parking_lot::Mutex;
use tokio::sync::watch;

use self::set::{SupervisorHandle, SupervisorSet};
use crate::{
    FleetConfig, FleetStartError, NumberedWorker, OnVerdict,
    artefacts::ArtefactStore,
    replacement,
    supervisor::Supervisor,
    supervisor_config::SupervisorConfig,
    worker_machine::{HealthSettings, WorkerEvent},
    worker_record::WorkerRecord,
    worker_table::WorkerTable,
};

/// All supervisors.
pub(crate) struct Supervisors {
    worker_table: Arc<WorkerTable>,
    artefacts: Arc<ArtefactStore>,
    on_verdict: OnVerdict,
    scheme: HashScheme,
    supervisors: Mutex<SupervisorSet>,
}

impl std::fmt::Debug for Supervisors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisors")
            .field("workers", &self.supervisors.lock().handles.len())
            .finish_non_exhaustive()
    }
}

impl Supervisors {
    pub(crate) fn new(
        worker_table: Arc<WorkerTable>,
        artefacts: Arc<ArtefactStore>,
        on_verdict: OnVerdict,
        scheme: HashScheme,
    ) -> Self {
        Self {
            worker_table,
            artefacts,
            on_verdict,
            scheme,
            supervisors: Mutex::default(),
        }
    }

    /// Sets the workers of an earlier process. Called before any worker is known.
    pub(crate) fn with_earlier(self, earlier: Vec<NumberedWorker>) -> Self {
        *self.supervisors.lock() = SupervisorSet::new(earlier);
        self
    }

    /// See [`crate::Fleet::apply`].
    pub(crate) fn apply(&self, fleet: &FleetConfig) -> Result<(), FleetStartError> {
        let set = &mut *self.supervisors.lock();
        let configs =
            fleet.supervisor_configs(self.scheme, |worker, url| set.number_of(worker, url))?;
        let health = Arc::new(HealthSettings {
            checks: fleet.health_checks.clone(),
            breaker: fleet.circuit_breaker.clone(),
            probes_salts: fleet.probes_salts,
        });
        self.worker_table.reconfigure(&health);
        set.mark_leaving(&configs);
        // Leaving workers release their names first: a worker that still finishes its requests may
        // have the name of a new one.
        for handle in set.handles.iter().filter(|handle| handle.leaving) {
            if configs.iter().any(|config| config.name == handle.name) {
                self.worker_table
                    .change(handle.id, WorkerRecord::release_name);
            }
        }
        for (config, worker) in configs.into_iter().zip(&fleet.workers) {
            match set.handles.iter().find(|handle| handle.id == config.id) {
                Some(handle) => self.reconfigure(handle, config, worker),
                None => {
                    let record = WorkerRecord::from_config(
                        worker,
                        &config,
                        &health,
                        &self.worker_table.clock,
                    );
                    self.worker_table.add(record);
                    set.handles
                        .push(self.spawn_supervisor(config, worker.tls.clone()));
                }
            }
        }
        // After the new workers are added: only then is it known which ones are replaced.
        let until = self.worker_table.clock.now() + replacement::LONGEST;
        self.worker_table.remove_workers(&set.leaving(), until);
        Ok(())
    }

    /// Passes the configuration to a worker that stays. Every change is a new snapshot of all
    /// workers, and most of them are unchanged.
    fn reconfigure(
        &self,
        handle: &SupervisorHandle,
        config: SupervisorConfig,
        worker: &config::WorkerEntry,
    ) {
        let table = &self.worker_table;
        if table.with(handle.id, |entry| entry.is_configured(worker)) == Some(false) {
            table.change(handle.id, |entry| entry.configure(worker));
        }
        handle.config.send_if_modified(|known| {
            let changed = **known != config;
            if changed {
                *known = Arc::new(config);
            }
            changed
        });
    }

    fn spawn_supervisor(
        &self,
        config: SupervisorConfig,
        tls: config::WorkerTls,
    ) -> SupervisorHandle {
        let (id, name) = (config.id, Arc::clone(&config.name));
        let url = config.client.url().clone();
        let config = watch::Sender::new(Arc::new(config));
        let stop = watch::Sender::new(false);
        let supervisor = Supervisor::new(
            Arc::clone(&self.worker_table),
            Arc::clone(&self.artefacts),
            Arc::clone(&self.on_verdict),
            config.subscribe(),
        );
        let task = runtime::spawn(supervisor.run(stop.subscribe()));
        SupervisorHandle {
            id,
            name,
            url,
            tls,
            leaving: false,
            config,
            stop,
            task,
        }
    }

    /// See [`crate::Fleet::drain`].
    pub(crate) fn drain(&self, name: &str, drained: bool) -> Option<WorkerId> {
        let decision = if drained {
            WorkerEvent::Drain
        } else {
            WorkerEvent::Resume
        };
        let set = self.supervisors.lock();
        let mut staying = set.handles.iter().filter(|handle| !handle.leaving);
        let id = staying.find(|handle| *handle.name == *name)?.id;
        self.worker_table.on(id, decision);
        Some(id)
    }

    /// See [`crate::Fleet::leaving`].
    pub(crate) fn leaving(&self) -> Vec<WorkerId> {
        self.worker_table.close_replaced();
        let leaving = self.supervisors.lock().leaving();
        leaving
            .into_iter()
            .filter(|id| self.worker_table.is_closed(*id))
            .collect()
    }

    /// See [`crate::Fleet::remove`]. A worker that is not leaving stays.
    pub(crate) async fn remove(&self, id: WorkerId) {
        let handle = {
            let handles = &mut self.supervisors.lock().handles;
            let at = handles
                .iter()
                .position(|handle| handle.id == id && handle.leaving);
            at.map(|at| handles.remove(at))
        };
        if let Some(handle) = handle {
            handle.end().await;
            self.worker_table.remove(id);
        }
    }

    /// Waits until every worker has had its first verdict.
    pub(crate) async fn first_verdicts(&self) {
        let mut reported = self.worker_table.reported.subscribe();
        let all = |reported: &HashSet<WorkerId>| {
            self.supervisors
                .lock()
                .handles
                .iter()
                .all(|it| reported.contains(&it.id))
        };
        // The sender lives as long as the table does.
        let _ = reported.wait_for(all).await;
    }

    /// See [`crate::Fleet::numbered_workers`].
    pub(crate) fn numbered(&self) -> Vec<NumberedWorker> {
        self.supervisors.lock().numbered()
    }

    /// See [`crate::Fleet::forget_unclaimed`].
    pub(crate) fn forget_unclaimed(&self) -> Vec<WorkerId> {
        let unclaimed = self.supervisors.lock().take_unclaimed();
        for id in &unclaimed {
            self.worker_table.forget_model(*id);
        }
        unclaimed
    }

    /// Signals every supervisor to end.
    pub(crate) fn shutdown(&self) {
        for handle in &self.supervisors.lock().handles {
            handle.stop.send_replace(true);
        }
    }

    /// Ends and awaits every supervisor. A second call returns at once.
    pub(crate) async fn stop(&self) {
        let handles = std::mem::take(&mut self.supervisors.lock().handles);
        for handle in handles {
            handle.end().await;
        }
    }
}
