//! Renews this replica's presence, watches the others', and writes claims.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use nats_client::{Bucket, BucketConfig, Client, JetStreamError, KeyChange, Storage};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use crate::{
    log::LogState,
    ownership::{OwnershipWrite, Presence, RENEWAL},
};

/// Interval of checks for streams without an owner.
const TICK: Duration = Duration::from_millis(100);
/// Most claims at once.
const CLAIMS: usize = 32;

/// The value of a presence key.
#[derive(Serialize, Deserialize)]
struct PresenceValue {
    able: bool,
    acknowledged: u64,
}

/// Whether the values that were there at the start have been read.
#[derive(Clone, Copy, Default)]
struct Watched {
    replicas: bool,
    owners: bool,
}

/// Takes part until the connection or a bucket fails.
pub(crate) async fn run(state: &LogState, client: &Client) -> Result<Infallible, JetStreamError> {
    let replicas = state.presence_bucket(client).await?;
    let owners = Bucket::open(
        client,
        &BucketConfig {
            name: state.settings.names.bucket("owners"),
            max_age: None,
            storage: Storage::Memory,
        },
    )
    .await?;
    let watched = watch::Sender::new(Watched::default());
    tokio::select! {
        failed = renew(state, &replicas) => failed,
        failed = watch_replicas(state, &replicas, &watched) => failed,
        failed = watch_owners(state, &owners, &watched) => failed,
        failed = claim(state, &owners, &watched) => failed,
    }
}

async fn renew(state: &LogState, bucket: &Bucket) -> Result<Infallible, JetStreamError> {
    let mut ticks = interval(RENEWAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let value = PresenceValue {
            able: state.ability.lock().is_able(state.clock.now()),
            acknowledged: state.covered(),
        };
        let value = serde_json::to_vec(&value).unwrap_or_default();
        bucket.put(&state.settings.replica, value.into()).await?;
    }
}

async fn watch_replicas(
    state: &LogState,
    bucket: &Bucket,
    watched: &watch::Sender<Watched>,
) -> Result<Infallible, JetStreamError> {
    let mut changes = bucket.watch().await?;
    loop {
        match changes.next().await {
            None => return Err(lost("the replicas")),
            Some(KeyChange::Current) => watched.send_modify(|watched| watched.replicas = true),
            Some(KeyChange::Deleted { key, .. }) => state.ownership.lock().gone(&key),
            Some(KeyChange::Put { key, value, .. }) => {
                // A key of another form is from a release that has other keys, too.
                let Ok(value) = serde_json::from_slice::<PresenceValue>(&value) else {
                    continue;
                };
                let presence = Presence {
                    able: value.able,
                    acknowledged: value.acknowledged,
                };
                let now = state.clock.now();
                state.ownership.lock().present(now, key.into(), presence);
            }
        }
    }
}

async fn watch_owners(
    state: &LogState,
    bucket: &Bucket,
    watched: &watch::Sender<Watched>,
) -> Result<Infallible, JetStreamError> {
    let mut changes = bucket.watch().await?;
    loop {
        let (key, owner, revision) = match changes.next().await {
            None => return Err(lost("the owners")),
            Some(KeyChange::Current) => {
                watched.send_modify(|watched| watched.owners = true);
                continue;
            }
            Some(KeyChange::Deleted { key, revision }) => (key, None, revision),
            Some(KeyChange::Put {
                key,
                value,
                revision,
            }) => (key, Some(owner(&value)), revision),
        };
        state.ownership.lock().owned(key.into(), owner, revision);
        if watched.borrow().owners {
            state.assign_roles();
        }
    }
}

fn owner(value: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(value).into()
}

async fn claim(
    state: &LogState,
    bucket: &Bucket,
    watched: &watch::Sender<Watched>,
) -> Result<Infallible, JetStreamError> {
    let mut complete = watched.subscribe();
    // The sender lives as long as this function.
    let _ = complete
        .wait_for(|watched| watched.replicas && watched.owners)
        .await;
    state.begin_use();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = state.clock.now();
        let mut writes = std::mem::take(&mut *state.releases.lock());
        writes.extend(state.ownership.lock().tick(now, runtime::chance()));
        let mut written = stream::iter(writes)
            .map(|item| write(state, bucket, item))
            .buffer_unordered(CLAIMS);
        while let Some(outcome) = written.next().await {
            outcome?;
        }
        drop(written);
        state.assign_roles();
    }
}

/// Writes a claim or a release.
async fn write(
    state: &LogState,
    bucket: &Bucket,
    item: OwnershipWrite,
) -> Result<(), JetStreamError> {
    let me = &state.settings.replica;
    let (token, written, owner) = match item {
        OwnershipWrite::Claim { token, revision } => {
            let value = me.as_bytes().to_vec().into();
            let written = bucket.update(&token, value, revision).await?;
            (token, written, Some(Arc::clone(me)))
        }
        OwnershipWrite::Release { token, revision } => {
            // The watch reports the deletion.
            bucket.delete(&token, revision).await?;
            return Ok(());
        }
    };
    let mut ownership = state.ownership.lock();
    match written {
        Some(revision) => ownership.owned(token, owner, revision),
        None => ownership.claim_failed(&token),
    }
    Ok(())
}

fn lost(what: &str) -> JetStreamError {
    JetStreamError::NoAnswer {
        subject: format!("the keys of {what}"),
        reason: "a change was lost".to_owned(),
    }
}
