//! The supervisors: one per worker, started, given other orders and ended as the configuration goes.
//!
//! **Invariant**: a number is given once; a worker is taken out of the board only after its supervisor, and with it every
//! stream, has ended.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use kv_blocks::{HashScheme, WorkerId};
use net::WorkerUrl;
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    OnVerdict, Roster, StartError,
    artefacts::ArtefactStore,
    board::{Board, Ejection},
    entry::{Admission, Entry},
    look::Orders,
    replacement,
    supervisor::Supervisor,
};

/// All supervisors.
pub(crate) struct Crew {
    board: Arc<Board>,
    artefacts: Arc<ArtefactStore>,
    on_verdict: OnVerdict,
    scheme: HashScheme,
    hands: Mutex<Hands>,
}

#[derive(Default)]
struct Hands {
    /// Numbers given so far.
    given: u32,
    keepers: Vec<Keeper>,
}

/// One worker's supervisor, from outside.
struct Keeper {
    id: WorkerId,
    name: Arc<str>,
    url: WorkerUrl,
    tls: config::WorkerTls,
    /// Not configured any more.
    leaving: bool,
    orders: watch::Sender<Arc<Orders>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew")
            .field("workers", &self.hands.lock().keepers.len())
            .finish_non_exhaustive()
    }
}

impl Crew {
    pub(crate) fn new(
        board: Arc<Board>,
        artefacts: Arc<ArtefactStore>,
        on_verdict: OnVerdict,
        scheme: HashScheme,
    ) -> Self {
        Self {
            board,
            artefacts,
            on_verdict,
            scheme,
            hands: Mutex::default(),
        }
    }

    /// See [`crate::Fleet::apply`].
    pub(crate) fn apply(&self, roster: &Roster) -> Result<(), StartError> {
        let hands = &mut *self.hands.lock();
        let Hands { given, keepers } = &mut *hands;
        let all = roster.orders(self.scheme, |worker, url| {
            // Who believes other certificates talks to another one, as far as anybody can tell.
            let same = |keeper: &&Keeper| {
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
        self.board
            .reconfigure(Ejection::of(&roster.circuit_breaker), health);
        // Those that leave give their names away first: who comes may have the name of one of them.
        let stay: HashMap<WorkerId, &Arc<str>> =
            all.iter().map(|orders| (orders.id, &orders.name)).collect();
        for keeper in keepers
            .iter_mut()
            .filter(|keeper| !keeper.leaving && !stay.contains_key(&keeper.id))
        {
            keeper.leaving = true;
        }
        // One that still ends its requests may have had that name before.
        for keeper in keepers.iter().filter(|keeper| keeper.leaving) {
            if all.iter().any(|orders| orders.name == keeper.name) {
                self.board.change(keeper.id, Entry::give_name_away);
            }
        }
        for (orders, worker) in all.into_iter().zip(&roster.workers) {
            if let Some(keeper) = keepers.iter().find(|keeper| keeper.id == orders.id) {
                // Every change is a new snapshot of all workers, and most of them are as they were.
                if self
                    .board
                    .with(orders.id, |entry| entry.is_configured(worker))
                    == Some(false)
                {
                    self.board
                        .change(orders.id, |entry| entry.configure(worker));
                }
                keeper.orders.send_if_modified(|known| {
                    let news = **known != orders;
                    if news {
                        *known = Arc::new(orders);
                    }
                    news
                });
            } else {
                self.board
                    .add(Entry::first(worker, &orders, health, &self.board.clock));
                keepers.push(self.hire(orders, worker.tls.clone()));
            }
        }
        // After those that come are there: only then is it known who is replaced.
        let until = self.board.clock.now() + replacement::LONGEST;
        let leaving: HashSet<WorkerId> = keepers
            .iter()
            .filter(|it| it.leaving)
            .map(|it| it.id)
            .collect();
        self.board.leave(&leaving, until);
        Ok(())
    }

    fn hire(&self, orders: Orders, tls: config::WorkerTls) -> Keeper {
        let (id, name, url) = (
            orders.id,
            Arc::clone(&orders.name),
            orders.asker.url().clone(),
        );
        let orders = watch::Sender::new(Arc::new(orders));
        let stop = watch::Sender::new(false);
        let (board, artefacts) = (Arc::clone(&self.board), Arc::clone(&self.artefacts));
        let supervisor = Supervisor::new(
            board,
            artefacts,
            Arc::clone(&self.on_verdict),
            orders.subscribe(),
        );
        let task = tokio::spawn(supervisor.run(stop.subscribe()));
        Keeper {
            id,
            name,
            url,
            tls,
            leaving: false,
            orders,
            stop,
            task,
        }
    }

    /// See [`crate::Fleet::drain`].
    pub(crate) fn drain(&self, name: &str, drained: bool) -> Option<WorkerId> {
        let admission = if drained {
            Admission::Closed
        } else {
            Admission::Open
        };
        let hands = self.hands.lock();
        let id = hands
            .keepers
            .iter()
            .find(|keeper| !keeper.leaving && *keeper.name == *name)?
            .id;
        self.board.change(id, |entry| entry.admission = admission);
        Some(id)
    }

    /// See [`crate::Fleet::leaving`].
    pub(crate) fn leaving(&self) -> Vec<WorkerId> {
        self.board.close_replaced();
        let hands = self.hands.lock();
        let leaving = hands
            .keepers
            .iter()
            .filter(|keeper| keeper.leaving)
            .map(|keeper| keeper.id);
        leaving.filter(|id| self.board.is_closed(*id)).collect()
    }

    /// See [`crate::Fleet::remove`]. One that is not leaving stays.
    pub(crate) async fn remove(&self, id: WorkerId) {
        let keeper = {
            let keepers = &mut self.hands.lock().keepers;
            let at = keepers
                .iter()
                .position(|keeper| keeper.id == id && keeper.leaving);
            at.map(|at| keepers.remove(at))
        };
        if let Some(keeper) = keeper {
            keeper.end().await;
            self.board.remove(id);
        }
    }

    /// Waits until every worker has had its first verdict.
    pub(crate) async fn first_verdicts(&self) {
        let mut judged = self.board.judged.subscribe();
        let all = |judged: &HashSet<WorkerId>| {
            self.hands
                .lock()
                .keepers
                .iter()
                .all(|it| judged.contains(&it.id))
        };
        // The sender lives as long as the board does.
        let _ = judged.wait_for(all).await;
    }

    /// Tells every supervisor to end.
    pub(crate) fn stop_looking(&self) {
        for keeper in &self.hands.lock().keepers {
            keeper.stop.send_replace(true);
        }
    }

    /// Ends and awaits every supervisor. A second call returns at once.
    pub(crate) async fn stop(&self) {
        let keepers = std::mem::take(&mut self.hands.lock().keepers);
        for keeper in keepers {
            keeper.end().await;
        }
    }
}

impl Keeper {
    async fn end(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.task.await {
            tracing::error!(%error, worker = %self.name, "a worker's supervisor ended with a panic");
        }
    }
}
