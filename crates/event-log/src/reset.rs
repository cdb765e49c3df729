//! Discards what earlier runs left on the server.

use std::sync::Arc;

use nats_client::{Client, JetStreamError};

use crate::{LogNames, SnapshotStore, log::presence_bucket};

/// Why the state was not discarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResetError {
    /// Other replicas use it.
    #[error(
        "replicas.reset_states would discard what other replicas use ({}): stop them first, or force it",
        replicas.join(", ")
    )]
    InUse {
        /// Their names.
        replicas: Vec<String>,
    },
    /// The server failed.
    #[error(transparent)]
    Server(#[from] JetStreamError),
}

/// Discards the log and the snapshots of a fleet; refuses while other replicas are present, unless
/// forced.
pub async fn reset(
    client: &Client,
    names: &LogNames,
    replica: &Arc<str>,
    force: bool,
) -> Result<(), ResetError> {
    let mut replicas = presence_bucket(client, names).await?.keys().await?;
    replicas.retain(|other| **other != **replica);
    if !replicas.is_empty() && !force {
        return Err(ResetError::InUse { replicas });
    }
    let store = SnapshotStore::open(client, names, replica).await?;
    store.discard().await?;
    Ok(())
}
