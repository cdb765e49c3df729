//! Watches the models that requests wait for.
//!
//! One check of the fleet serves all waiting requests, and wakes only those whose model's targets
//! have changed.
//!
//! **Invariant**: one entry for each model that a request waits for, and no others.

use std::{collections::HashMap, sync::Arc, time::Duration};

use fleet::{Fleet, ModelView, Snapshot};
use kv_blocks::{Moment, Target};
use parking_lot::Mutex;
use routing::Router;
use tokio::sync::watch;

/// Interval of the checks while requests wait.
const LOOK: Duration = Duration::from_millis(250);

/// The models that requests wait for.
#[derive(Debug, Default)]
pub(crate) struct ModelWatch(Mutex<WatchedModels>);

#[derive(Debug, Default)]
struct WatchedModels {
    watched: HashMap<Arc<str>, WatchedModel>,
    checked_at: Moment,
    /// The fleet at the last check.
    snapshot: Option<Arc<Snapshot>>,
}

#[derive(Debug)]
struct WatchedModel {
    /// The model's targets when its requests were last woken; `None`: no worker listed it.
    targets: Option<Vec<Target>>,
    changes: watch::Sender<u64>,
    requests: usize,
}

impl ModelWatch {
    /// Watches a model for a request that was decided by `seen`; `None`: no worker listed the
    /// model.
    pub(crate) fn subscribe(&self, id: &Arc<str>, seen: Option<&ModelView>) -> ModelChanges<'_> {
        let targets = seen.map(targets);
        let models = &mut *self.0.lock();
        if !models.watched.contains_key(id) {
            // The request may have been decided by an older fleet than that of the last check.
            models.snapshot = None;
        }
        let watched = models
            .watched
            .entry(Arc::clone(id))
            .or_insert_with(|| WatchedModel {
                targets: targets.clone(),
                changes: watch::Sender::new(0),
                requests: 0,
            });
        watched.requests += 1;
        let mut changes = watched.changes.subscribe();
        if watched.targets != targets {
            // It was decided by another view than the others wait by: it decides again at once.
            changes.mark_changed();
        }
        ModelChanges {
            watch: self,
            id: Arc::clone(id),
            changes,
        }
    }

    /// Returns the time of the next check; `None`: no request waits.
    pub(crate) fn next_check(&self) -> Option<Moment> {
        let models = self.0.lock();
        (!models.watched.is_empty()).then(|| models.checked_at + LOOK)
    }

    /// Wakes the requests of the models that have changed, and passes the current KV usage to the
    /// router. Does nothing before the next check is due.
    pub(crate) fn check_fleet(&self, now: Moment, fleet: &Fleet, router: &Router) {
        let models = &mut *self.0.lock();
        if models.watched.is_empty() || now < models.checked_at + LOOK {
            return;
        }
        models.checked_at = now;
        let snapshot = fleet.snapshot();
        if models
            .snapshot
            .as_ref()
            .is_some_and(|before| Arc::ptr_eq(before, &snapshot))
        {
            return;
        }
        for (id, watched) in &mut models.watched {
            let view = snapshot.model(id);
            let targets = view.map(|view| targets(view));
            // Any change may settle that a model without workers is missing for good.
            if watched.targets != targets || targets.is_none() {
                watched.targets = targets;
                watched.changes.send_modify(|count| *count += 1);
            }
            for candidate in view.iter().flat_map(|view| &view.candidates) {
                if let Some(ratio) = candidate.worker.load.kv_usage_ratio {
                    router.observe_usage(candidate.target, now, ratio, candidate.worker.num_blocks);
                }
            }
        }
        models.snapshot = Some(snapshot);
    }
}

/// The changes of one model, for one request.
#[derive(Debug)]
pub(crate) struct ModelChanges<'a> {
    watch: &'a ModelWatch,
    id: Arc<str>,
    changes: watch::Receiver<u64>,
}

impl ModelChanges<'_> {
    /// Waits until the model's targets differ from those at the last call.
    pub(crate) async fn wait_for_change(&mut self) {
        if self.changes.changed().await.is_err() {
            // The sender lives as long as a request waits.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for ModelChanges<'_> {
    fn drop(&mut self) {
        let models = &mut *self.watch.0.lock();
        if let Some(watched) = models.watched.get_mut(&self.id) {
            watched.requests -= 1;
            if watched.requests == 0 {
                models.watched.remove(&self.id);
            }
        }
        if models.watched.is_empty() {
            models.snapshot = None;
        }
    }
}

fn targets(view: &ModelView) -> Vec<Target> {
    view.candidates
        .iter()
        .map(|candidate| candidate.target)
        .collect()
}
