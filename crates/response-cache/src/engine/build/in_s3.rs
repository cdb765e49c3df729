//! A store in an object store: patient, and copied to the first tier where its answer comes too late.

use std::{sync::Arc, time::Duration};

use super::sealing;
use crate::{
    StartError,
    engine::Parts,
    store::{
        Store,
        health::Manner,
        patient::{Late, Patience, Patient},
        s3::{NAME, S3Store},
        tiered::Promotion,
    },
};

/// Looks at a time, while it answers.
const LOOKUPS: usize = 16;
/// An object store is seldom quick: while it answers too slowly to be waited for, what it says is copied for those who come
/// later.
const MANNER: Manner = Manner {
    behind: 8,
    slow: (Duration::ZERO, Duration::ZERO),
    away: Some((Duration::from_millis(250), Duration::from_secs(30))),
};

pub(super) fn store(promotion: Promotion, parts: &Parts) -> Result<Arc<dyn Store>, StartError> {
    let store = S3Store::new(sealing(parts), Arc::clone(&parts.in_force), parts.clock)?;
    let late: Late = Arc::new(move |key, found, begun| promotion.consider(key, found, begun));
    let with = Patience {
        name: NAME,
        lookups: LOOKUPS,
        manner: MANNER,
        late: Some(late),
        on_change: None,
        in_force: Arc::clone(&parts.in_force),
        tally: Arc::clone(&parts.tally),
        clock: parts.clock,
    };
    Ok(Arc::new(Patient::new(Arc::new(store), with)))
}
