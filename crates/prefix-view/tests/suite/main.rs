//! The view from outside: events in, holders and scores out.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod against_a_model;
mod allocations;
mod events;
mod many_threads;
mod memory;
mod prepared;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use kv_blocks::{Moment, SequenceHash};
use prefix_view::{
    EventKind, Holder, MemoryPrefixIndex, Offloading, PrefixEvent, PrefixHash, PrefixIndex,
    RecordOutcome, StorageTier, ViewSettings,
};

const BOTH_TIERS: Offloading = Offloading::On {
    treat_eviction_as_offload: true,
};
const TTL_S: u64 = 600;

fn second(seconds: u64) -> Moment {
    Moment::at(Duration::from_secs(seconds))
}

fn prefix(number: u64) -> PrefixHash {
    PrefixHash::Sequence(SequenceHash(number))
}

fn event(kind: EventKind, number: u64, token_count: impl Into<Option<u32>>) -> PrefixEvent {
    PrefixEvent {
        kind,
        prefix: prefix(number),
        token_count: token_count.into(),
    }
}

fn settings(offloading: Offloading) -> ViewSettings {
    ViewSettings {
        entry_ttl: Duration::from_secs(TTL_S),
        offloading,
        ..ViewSettings::default()
    }
}

fn index_with_capacity(max_entries: usize) -> MemoryPrefixIndex {
    MemoryPrefixIndex::new(ViewSettings {
        max_entries: NonZeroUsize::new(max_entries).unwrap(),
        ..settings(Offloading::Off)
    })
}

fn record(
    index: &MemoryPrefixIndex,
    backend: &str,
    event: PrefixEvent,
    now: Moment,
) -> RecordOutcome {
    index.record(&Arc::from(backend), &event, now).unwrap()
}

fn created(index: &MemoryPrefixIndex, backend: &str, number: u64, tokens: u32, now: Moment) {
    assert_eq!(
        record(
            index,
            backend,
            event(EventKind::Created, number, tokens),
            now
        ),
        RecordOutcome::Stored
    );
}

/// The holders of a prefix, best first.
fn holders(index: &MemoryPrefixIndex, number: u64, now: Moment) -> Vec<(String, u32, StorageTier)> {
    let holders = index.query(&prefix(number), now).unwrap();
    holders
        .into_iter()
        .map(
            |Holder {
                 backend,
                 tokens,
                 tier,
             }| (backend.to_string(), tokens, tier),
        )
        .collect()
}

/// The tokens and the tier of one backend.
fn holding(
    index: &MemoryPrefixIndex,
    backend: &str,
    number: u64,
    now: Moment,
) -> Option<(u32, StorageTier)> {
    let holders = holders(index, number, now);
    holders
        .into_iter()
        .find(|(name, ..)| name == backend)
        .map(|(_, tokens, tier)| (tokens, tier))
}
