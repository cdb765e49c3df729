//! Scans over every key of the view. They are slow, and no request waits for them.

use std::sync::Arc;

use redis::Pipeline;

use super::keys::{KEY_PREFIX, is_of_tiers};
use crate::{Operation, RedisFault, page::KeyPages, pool::PoolShared};

/// Scope of a removal.
#[derive(Debug)]
pub(super) enum SweepScope {
    Everything,
    Backend(Arc<str>),
}

/// Removes the scope in one scan. Entries written meanwhile may be removed or stay.
pub(super) async fn sweep(shared: &PoolShared, what: &SweepScope) -> Result<(), RedisFault> {
    let mut pages = KeyPages::new(shared, KEY_PREFIX);
    while let Some(keys) = pages.next().await? {
        let mut removal = Pipeline::new();
        removal.ignore_errors();
        for key in keys {
            match (what, is_of_tiers(&key)) {
                (_, None) => {}
                (SweepScope::Everything, Some(_)) => {
                    removal.cmd("UNLINK").arg(key);
                }
                (SweepScope::Backend(name), Some(false)) => {
                    removal.cmd("ZREM").arg(key).arg(&**name);
                }
                (SweepScope::Backend(name), Some(true)) => {
                    removal.cmd("HDEL").arg(key).arg(&**name);
                }
            }
        }
        if !removal.is_empty() {
            shared.send(Operation::Delete, &removal).await?;
        }
    }
    Ok(())
}
