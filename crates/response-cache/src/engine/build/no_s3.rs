//! Replaces the object store in a build without one.

use std::sync::Arc;

use super::Promotion;
use crate::{CacheStartError, engine::CacheParts, store::Store};

pub(super) fn store(_: Promotion, _: &CacheParts) -> Result<Arc<dyn Store>, CacheStartError> {
    let key = "response_cache.backend";
    Err(CacheStartError::NotBuilt {
        store: "an object store",
        key,
        value: "tiered",
        feature: "s3-cache",
    })
}
