//! The router's workers as instances of the Conductor API.

use std::sync::Arc;

use fleet::Fleet;
use indexer::{ResidentInstance, ResidentInstances};

/// Returns the ranks of all workers, whether or not they get requests: their caches stay valid
/// either way.
pub fn residents(fleet: Arc<Fleet>) -> ResidentInstances {
    ResidentInstances::new(move || {
        let snapshot = fleet.snapshot();
        let ranks = snapshot.workers.iter().flat_map(|worker| {
            worker
                .targets()
                .zip(&worker.ranks)
                .map(|(target, rank)| ResidentInstance {
                    target,
                    instance: Arc::clone(&worker.name),
                    engine: worker.engine.kind.as_str(),
                    model: worker.served.namespace_model.clone(),
                    block_size: worker.cache.block_size.tokens(),
                    state: rank.stream,
                })
        });
        ranks.collect()
    })
}
