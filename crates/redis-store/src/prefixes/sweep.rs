//! What goes through every key of the view. It takes its time and nobody waits for it.

use std::sync::Arc;

use redis::Pipeline;

use super::keys::{KEY_PREFIX, is_of_tiers};
use crate::{Operation, RedisFault, page::Pages, pool::Shared};

/// What goes.
#[derive(Debug)]
pub(super) enum Sweep {
    Everything,
    Backend(Arc<str>),
}

/// Goes through it once. What is written meanwhile may stay or go.
pub(super) async fn sweep(shared: &Shared, what: &Sweep) -> Result<(), RedisFault> {
    let mut pages = Pages::new(shared, KEY_PREFIX);
    while let Some(keys) = pages.next().await? {
        let mut removal = Pipeline::new();
        removal.ignore_errors();
        for key in keys {
            match (what, is_of_tiers(&key)) {
                (_, None) => {}
                (Sweep::Everything, Some(_)) => drop(removal.cmd("UNLINK").arg(key)),
                (Sweep::Backend(name), Some(false)) => {
                    drop(removal.cmd("ZREM").arg(key).arg(&**name))
                }
                (Sweep::Backend(name), Some(true)) => {
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
