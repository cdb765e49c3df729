//! Watches the models that requests wait for.
//!
//! One check of the fleet serves all waiting requests, and wakes only those whose model's targets
//! have changed.
//!
//! **Invariant**: one entry for each model that a request waits for, and no others.

use std::{collections::HashMap, sync::Arc, time::Duration};

use fleet::{Fleet, ModelView, SaltSupport, Snapshot};
use kv_blocks::{Moment, Target};
use parking_lot::Mutex;
use routing::Router;
use tokio::sync::watch;

/// Interval of the checks while requests wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

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
    targets: Option<Vec<WatchedTarget>>,
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
        (!models.watched.is_empty()).then(|| models.checked_at + CHECK_INTERVAL)
    }

    /// Wakes the requests of the models that have changed, and passes the current KV usage to the
    /// router. Does nothing before the next check is due.
    pub(crate) fn check_fleet(&self, now: Moment, fleet: &Fleet, router: &Router) {
        let models = &mut *self.0.lock();
        if models.watched.is_empty() || now < models.checked_at + CHECK_INTERVAL {
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
            // Any change can show that a model without workers is missing for good.
            if watched.targets != targets || targets.is_none() {
                watched.targets = targets;
                watched.changes.send_modify(|count| *count += 1);
            }
            for candidate in view.iter().flat_map(|view| &view.candidates) {
                if let Some(ratio) = candidate.worker.load.kv_usage_ratio {
                    router.observe_usage(
                        candidate.target,
                        now,
                        ratio,
                        candidate.worker.cache.num_blocks,
                    );
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

/// A target, and whether it may get requests of strictly isolated tenants.
type WatchedTarget = (Target, SaltSupport);

fn targets(view: &ModelView) -> Vec<WatchedTarget> {
    view.candidates
        .iter()
        .map(|candidate| (candidate.target, candidate.worker.salt_support))
        .collect()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::request::{test_gateway::TestGateway, test_support};

    fn view(workers: &[u32]) -> ModelView {
        let workers = workers.iter().map(|number| test_support::worker(*number));
        test_support::model(workers.collect())
    }

    fn has_changed(changes: &mut ModelChanges<'_>) -> bool {
        changes.wait_for_change().now_or_never().is_some()
    }

    #[tokio::test]
    async fn a_request_is_woken_when_the_targets_of_its_model_change_and_only_then() {
        let test = TestGateway::new();
        let (watch, id) = (ModelWatch::default(), Arc::from("m"));
        let mut unlisted = watch.subscribe(&id, None);
        let mut listed = watch.subscribe(&Arc::from("n"), Some(&view(&[1])));
        assert!(!has_changed(&mut unlisted) && !has_changed(&mut listed));
        let first = watch.next_check().expect("requests wait");
        let (fleet, router) = (test.gateway.fleet(), &test.router);
        watch.check_fleet(first, fleet, router);
        // Any change of the fleet can show that the model is missing for good.
        assert!(has_changed(&mut unlisted));
        assert!(
            has_changed(&mut listed),
            "the fleet has none of its workers"
        );
        let second = watch.next_check().expect("requests wait");
        watch.check_fleet(second, fleet, router);
        assert!(
            !has_changed(&mut unlisted) && !has_changed(&mut listed),
            "the same fleet"
        );
    }

    #[tokio::test]
    async fn the_fleet_is_checked_at_intervals_while_requests_wait() {
        let test = TestGateway::new();
        let watch = ModelWatch::default();
        assert_eq!(watch.next_check(), None);
        let mut changes = watch.subscribe(&Arc::from("m"), Some(&view(&[1])));
        let due = watch.next_check().expect("a request waits");
        let (fleet, router) = (test.gateway.fleet(), &test.router);
        watch.check_fleet(Moment::START, fleet, router);
        assert!(!has_changed(&mut changes), "it is not due yet");
        watch.check_fleet(due, fleet, router);
        assert!(has_changed(&mut changes));
        assert_eq!(watch.next_check(), Some(due + CHECK_INTERVAL));
        drop(changes);
        assert_eq!(watch.next_check(), None);
        assert!(watch.0.lock().snapshot.is_none());
    }

    #[test]
    fn a_request_that_saw_other_targets_than_the_rest_decides_again_at_once() {
        let (watch, id) = (ModelWatch::default(), Arc::from("m"));
        let mut first = watch.subscribe(&id, Some(&view(&[1, 2])));
        let mut same = watch.subscribe(&id, Some(&view(&[1, 2])));
        let mut other = watch.subscribe(&id, Some(&view(&[1])));
        assert!(!has_changed(&mut first) && !has_changed(&mut same));
        assert!(has_changed(&mut other));
        drop((first, same));
        assert!(watch.next_check().is_some(), "one request still waits");
        drop(other);
        assert_eq!(watch.next_check(), None);
    }
}
