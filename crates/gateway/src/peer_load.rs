//! What the other replicas cause in this one's request path.

use std::sync::Arc;

use replicas::SharedNote;
use routing::ReleasedRequest;

use crate::{Gateway, response_affinity::ResponseHome};

impl Gateway {
    /// Starts queued requests that a change of the peers' load released.
    pub fn deliver_released(&self, released: Vec<ReleasedRequest>) {
        if !released.is_empty() {
            self.decider().waiters.deliver(released);
        }
    }

    /// Records a note of a peer. A worker that is unknown here is ignored.
    pub fn record_peer_note(&self, note: SharedNote) {
        let now = self.clock().now();
        let snapshot = self.fleet().snapshot();
        let (SharedNote::ResponseHome { worker, .. } | SharedNote::Cooldown { worker, .. }) = &note;
        let Some(worker) = snapshot.worker_named(worker) else {
            return;
        };
        match note {
            SharedNote::ResponseHome { key, .. } => {
                let home = ResponseHome {
                    worker: worker.id,
                    name: Arc::clone(&worker.name),
                };
                self.recorder.response_affinity.record_key(key, home, now);
            }
            SharedNote::Cooldown { wait, .. } => self.decider().cooldowns.put(worker.id, now, wait),
        }
    }
}
