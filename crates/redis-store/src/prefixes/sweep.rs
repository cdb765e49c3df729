//! What goes through every key of the view. It takes its time and nobody waits for it.

use std::sync::Arc;

use redis::Pipeline;

use super::keys::{KEY_PREFIX, is_of_tiers};
use crate::{Operation, RedisFault, page::KeyPages, pool::PoolShared};

/// What goes.
#[derive(Debug)]
pub(super) enum SweepScope {
    Everything,
    Backend(Arc<str>),
}

/// Goes through it once. What is written meanwhile may stay or go.
pub(super) async fn sweep(shared: &PoolShared, what: &SweepScope) -> Result<(), RedisFault> {
    let mut pages = KeyPages::new(shared, KEY_PREFIX);
    while let Some(keys) = pages.next().await? {
        let mut removal = Pipeline::new();
        removal.ignore_errors();
        for key in keys {
            match (what, is_of_tiers(&key)) {
                (_, None) => {}
                (SweepScope::Everything, Some(_)) => drop(removal.cmd("UNLINK").arg(key)),
                (SweepScope::Backend(name), Some(false)) => {
                    drop(removal.cmd("ZREM").arg(key).arg(&**name))
                }
                (SweepScope::Backend(name), Some(true)) => {
                    drop(removal.cmd("HDEL").arg(key).arg(&**name))
                }
            }
        }
        if !removal.is_empty() {
            shared.ask(Operation::Delete, &removal).await?;
        }
    }
    Ok(())
}
