//! In the place of an object store, in a program that cannot have one.

use std::sync::Arc;

use super::Promotion;
use crate::{StartError, engine::Parts, store::Store};

pub(super) fn store(_: Promotion, _: &Parts) -> Result<Arc<dyn Store>, StartError> {
    let key = "response_cache.backend";
    Err(StartError::NotBuilt {
        store: "an object store",
        key,
        value: "tiered",
        feature: "s3-cache",
    })
}
