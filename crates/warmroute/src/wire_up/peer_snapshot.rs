//! The index of another router, copied at the start.

use std::time::Duration;

use config::{Secret, Settings};
use fleet::NumberedWorker;
use replicas::PeerSnapshots;
use tokio::time::timeout;

use crate::{index_snapshot::LastingState, settings::admin_token};

/// Longest time for the copy; without it the index starts empty.
const PATIENCE: Duration = Duration::from_secs(30);

/// Loads the index of the first peer that has one into the empty index, and returns its workers.
/// `None`: there are no peers, or none of them answers.
pub(super) async fn load(settings: &Settings, state: &LastingState) -> Option<Vec<NumberedWorker>> {
    let token = admin_token(settings);
    let token = token.as_ref().map(Secret::expose);
    let limit = usize::try_from(settings.kv_events.memory_budget).unwrap_or(usize::MAX);
    // The exchange reports settings that cannot be used.
    let peers = PeerSnapshots::of(&settings.replicas, token, limit).ok()?;
    let Ok(found) = timeout(PATIENCE, peers.first()).await else {
        tracing::warn!(limit = ?PATIENCE, "the index of a peer was not copied in time: it starts without");
        return None;
    };
    let (peer, bytes) = found?;
    let length = bytes.len();
    let state = state.clone();
    let loaded = runtime::spawn_blocking(move || state.load_bytes(&bytes)).await;
    match loaded {
        Ok(Ok(workers)) => {
            tracing::info!(
                peer,
                bytes = length,
                workers = workers.len(),
                "the index of a peer is copied: each worker's blocks count once its event stream continues them"
            );
            Some(workers)
        }
        Ok(Err(error)) => {
            tracing::warn!(peer, %error, "the index of a peer is rejected: the index starts without");
            None
        }
        Err(error) => {
            tracing::error!(peer, %error, "the load of a peer's index ended with a panic: the index starts without");
            None
        }
    }
}
