//! All supervisors: started, reconfigured and stopped as the configuration changes.
//!
//! **Invariant**: a number is assigned once; a worker is removed from the table only after its
//! supervisor, and with it every stream, has ended.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use kv_blocks::{HashScheme, WorkerId};
use net::WorkerUrl;
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    FleetConfig, FleetStartError, OnVerdict,
    artefacts::ArtefactStore,
    replacement,
    supervisor::Supervisor,
    worker_check::SupervisorConfig,
    worker_record::{WorkerAdmission, WorkerRecord},
    worker_table::{EjectionRule, WorkerTable},
};

/// All supervisors.
pub(crate) struct Supervisors {
    worker_table: Arc<WorkerTable>,
    artefacts: Arc<ArtefactStore>,
    on_verdict: OnVerdict,
    scheme: HashScheme,
    supervisors: Mutex<SupervisorSet>,
}

#[derive(Default)]
struct SupervisorSet {
    /// Count of assigned numbers.
    next_id: u32,
    handles: Vec<SupervisorHandle>,
}

/// Handle of one worker's supervisor.
struct SupervisorHandle {
    id: WorkerId,
    name: Arc<str>,
    url: WorkerUrl,
    tls: config::WorkerTls,
    /// Whether the worker is no longer configured.
    leaving: bool,
    config: watch::Sender<Arc<SupervisorConfig>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Supervisors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew")
            .field("workers", &self.supervisors.lock().handles.len())
            .finish_non_exhaustive()
    }
}

impl Supervisors {
    pub(crate) fn new(
        board: Arc<WorkerTable>,
        artefacts: Arc<ArtefactStore>,
        on_verdict: OnVerdict,
        scheme: HashScheme,
    ) -> Self {
        Self {
            worker_table: board,
            artefacts,
            on_verdict,
            scheme,
            supervisors: Mutex::default(),
        }
    }

    /// See [`crate::Fleet::apply`].
    pub(crate) fn apply(&self, roster: &FleetConfig) -> Result<(), FleetStartError> {
        let hands = &mut *self.supervisors.lock();
        let SupervisorSet {
            next_id: given,
            handles: keepers,
        } = &mut *hands;
        let all = roster.supervisor_configs(self.scheme, |worker, url| {
            // Other trust roots or identities may mean another server, so such a worker counts as
            // another one.
            let same = |keeper: &&SupervisorHandle| {
                !keeper.leaving
                    && *keeper.name == *worker.name
                    && keeper.url == *url
                    && keeper.tls == worker.tls
            };
            keepers.iter().find(same).map_or_else(
                || {
                    *given += 1;
                    WorkerId(*given - 1)
                },
                |keeper| keeper.id,
            )
        })?;
        let health = roster.health_settings();
        self.worker_table
            .reconfigure(EjectionRule::of(&roster.circuit_breaker), health);
        // Leaving workers release their names first: a new one may have the name of one of them.
        let stay: HashMap<WorkerId, &Arc<str>> =
            all.iter().map(|orders| (orders.id, &orders.name)).collect();
        for keeper in keepers
            .iter_mut()
            .filter(|keeper| !keeper.leaving && !stay.contains_key(&keeper.id))
        {
            keeper.leaving = true;
        }
        // A worker that still finishes its requests may have had that name before.
        for keeper in keepers.iter().filter(|keeper| keeper.leaving) {
            if all.iter().any(|orders| orders.name == keeper.name) {
                self.worker_table
                    .change(keeper.id, WorkerRecord::release_name);
            }
        }
        for (orders, worker) in all.into_iter().zip(&roster.workers) {
            if let Some(keeper) = keepers.iter().find(|keeper| keeper.id == orders.id) {
                // Every change is a new snapshot of all workers, and most of them are unchanged.
                if self
                    .worker_table
                    .with(orders.id, |entry| entry.is_configured(worker))
                    == Some(false)
                {
                    self.worker_table
                        .change(orders.id, |entry| entry.configure(worker));
                }
                keeper.config.send_if_modified(|known| {
                    let news = **known != orders;
                    if news {
                        *known = Arc::new(orders);
                    }
                    news
                });
            } else {
                self.worker_table.add(WorkerRecord::from_config(
                    worker,
                    &orders,
                    health,
                    &self.worker_table.clock,
                ));
                keepers.push(self.spawn_supervisor(orders, worker.tls.clone()));
            }
        }
        // After the new workers are added: only then is it known which ones are replaced.
        let until = self.worker_table.clock.now() + replacement::LONGEST;
        let leaving: HashSet<WorkerId> = keepers
            .iter()
            .filter(|it| it.leaving)
            .map(|it| it.id)
            .collect();
        self.worker_table.remove_workers(&leaving, until);
        Ok(())
    }

    fn spawn_supervisor(
        &self,
        orders: SupervisorConfig,
        tls: config::WorkerTls,
    ) -> SupervisorHandle {
        let (id, name, url) = (
            orders.id,
            Arc::clone(&orders.name),
            orders.client.url().clone(),
        );
        let orders = watch::Sender::new(Arc::new(orders));
        let stop = watch::Sender::new(false);
        let (board, artefacts) = (Arc::clone(&self.worker_table), Arc::clone(&self.artefacts));
        let supervisor = Supervisor::new(
            board,
            artefacts,
            Arc::clone(&self.on_verdict),
            orders.subscribe(),
        );
        let task = tokio::spawn(supervisor.run(stop.subscribe()));
        SupervisorHandle {
            id,
            name,
            url,
            tls,
            leaving: false,
            config: orders,
            stop,
            task,
        }
    }

    /// See [`crate::Fleet::drain`].
    pub(crate) fn drain(&self, name: &str, drained: bool) -> Option<WorkerId> {
        let admission = if drained {
            WorkerAdmission::Closed
        } else {
            WorkerAdmission::Open
        };
        let hands = self.supervisors.lock();
        let id = hands
            .handles
            .iter()
            .find(|keeper| !keeper.leaving && *keeper.name == *name)?
            .id;
        self.worker_table
            .change(id, |entry| entry.admission = admission);
        Some(id)
    }

    /// See [`crate::Fleet::leaving`].
    pub(crate) fn leaving(&self) -> Vec<WorkerId> {
        self.worker_table.close_replaced();
        let hands = self.supervisors.lock();
        let leaving = hands
            .handles
            .iter()
            .filter(|keeper| keeper.leaving)
            .map(|keeper| keeper.id);
        leaving
            .filter(|id| self.worker_table.is_closed(*id))
            .collect()
    }

    /// See [`crate::Fleet::remove`]. A worker that is not leaving stays.
    pub(crate) async fn remove(&self, id: WorkerId) {
        let keeper = {
            let keepers = &mut self.supervisors.lock().handles;
            let at = keepers
                .iter()
                .position(|keeper| keeper.id == id && keeper.leaving);
            at.map(|at| keepers.remove(at))
        };
        if let Some(keeper) = keeper {
            keeper.end().await;
            self.worker_table.remove(id);
        }
    }

    /// Waits until every worker has had its first verdict.
    pub(crate) async fn first_verdicts(&self) {
        let mut judged = self.worker_table.judged.subscribe();
        let all = |judged: &HashSet<WorkerId>| {
            self.supervisors
                .lock()
                .handles
                .iter()
                .all(|it| judged.contains(&it.id))
        };
        // The sender lives as long as the table does.
        let _ = judged.wait_for(all).await;
    }

    /// Signals every supervisor to end.
    pub(crate) fn shutdown(&self) {
        for keeper in &self.supervisors.lock().handles {
            keeper.stop.send_replace(true);
        }
    }

    /// Ends and awaits every supervisor. A second call returns at once.
    pub(crate) async fn stop(&self) {
        let keepers = std::mem::take(&mut self.supervisors.lock().handles);
        for keeper in keepers {
            keeper.end().await;
        }
    }
}

impl SupervisorHandle {
    async fn end(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.task.await {
            tracing::error!(%error, worker = %self.name, "a worker's supervisor ended with a panic");
        }
    }
}
