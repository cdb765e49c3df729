//! Changes of the models that requests wait for.
//!
//! One look at the fleet serves all waiting requests, and wakes those of a model whose targets have changed and no others.
//!
//! **Invariant**: one entry for each model that a request waits for, and none beside.

use std::{collections::HashMap, sync::Arc, time::Duration};

use fleet::{Fleet, ModelView, Snapshot};
use kv_blocks::{Moment, Target};
use parking_lot::Mutex;
use routing::Router;
use tokio::sync::watch;

/// How often the fleet is looked at while requests wait.
const LOOK: Duration = Duration::from_millis(250);

/// Models that requests wait for.
#[derive(Debug, Default)]
pub(crate) struct ModelWatch(Mutex<WatchedModels>);

#[derive(Debug, Default)]
struct WatchedModels {
    watched: HashMap<Arc<str>, WatchedModel>,
    checked_at: Moment,
    /// The fleet at the last look.
    snapshot: Option<Arc<Snapshot>>,
}

#[derive(Debug)]
struct WatchedModel {
    /// The model's targets when its requests were woken last; `None`: nobody listed it.
    targets: Option<Vec<Target>>,
    changes: watch::Sender<u64>,
    requests: usize,
}

impl ModelWatch {
    /// Watches a model for a request that decided by `seen`; `None`: nobody listed the model.
    pub(crate) fn subscribe(&self, id: &Arc<str>, seen: Option<&ModelView>) -> ModelChanges<'_> {
        let targets = seen.map(targets);
        let models = &mut *self.0.lock();
        if !models.watched.contains_key(id) {
            // The request may have decided by an older fleet than the one that was looked at last.
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
            // It decided by another view than the others wait by: let it decide again at once.
            changes.mark_changed();
        }
        ModelChanges {
            watch: self,
            id: Arc::clone(id),
            changes,
        }
    }

    /// When to look at the fleet; `None`: no request waits.
    pub(crate) fn next_check(&self) -> Option<Moment> {
        let models = self.0.lock();
        (!models.watched.is_empty()).then(|| models.checked_at + LOOK)
    }

    /// Wakes the requests of the models that have changed, and tells the router how full the caches are by now. Does nothing
    /// if it is not time yet.
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
            // A model that nobody lists may have been found missing for good by any change.
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
    /// Waits until other targets can take requests for the model than when this was asked last.
    pub(crate) async fn wait_for_change(&mut self) {
        if self.changes.changed().await.is_err() {
            // The sender lives as long as there is a request.
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
