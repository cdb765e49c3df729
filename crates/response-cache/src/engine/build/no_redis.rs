//! In the place of a store in Redis, in a program that cannot have one.

use std::sync::Arc;

use config::ResponseCache;

use super::InRedis;
use crate::{StartError, engine::Parts, store::memory::MemoryStore};

pub(super) fn store(
    key: &'static str,
    _: &ResponseCache,
    _: &Arc<MemoryStore>,
    _: &Parts,
) -> Result<InRedis, StartError> {
    Err(StartError::NotBuilt {
        store: "Redis",
        key,
        value: "redis",
        feature: "redis-cache",
    })
}
