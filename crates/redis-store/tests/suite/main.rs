//! The prefix view in a real Redis, seen by a raw client and through every fault.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod faults;
mod hostile;
mod layout;
#[path = "../redis_server/mod.rs"]
mod redis_server;
mod together;

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use config::RedisSection;
use kv_blocks::SequenceHash;
use net::Clock;
use prefix_view::{
    EventKind, Holder, Offloading, PrefixEvent, PrefixHash, PrefixIndex, StorageTier, ViewSettings,
};
use redis_store::{RedisPool, RedisPrefixIndex, SharedView};

const BOTH_TIERS: Offloading = Offloading::On {
    treat_eviction_as_offload: true,
};
/// An upper bound; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// One router's view in the server at `url`, in front of workers `w1`, `w2` and `w3`.
fn router(url: &str, offloading: Offloading) -> RedisPrefixIndex {
    router_with(
        url,
        ViewSettings {
            offloading,
            ..ViewSettings::default()
        },
    )
}

fn router_with(url: &str, settings: ViewSettings) -> RedisPrefixIndex {
    router_that_waits(url, settings, Duration::from_millis(300))
}

/// A view that treats the server as away only if an answer takes this long.
fn router_that_waits(
    url: &str,
    settings: ViewSettings,
    command_timeout: Duration,
) -> RedisPrefixIndex {
    let redis = RedisSection {
        url: url.parse().unwrap(),
        tls: false,
        tls_ca: None,
        pool_size: NonZeroU32::new(8).unwrap(),
        connect_timeout: Duration::from_secs(1),
        command_timeout,
        ping_interval: Duration::from_secs(30),
    };
    let clock = Clock::system();
    let backends = ["w1", "w2", "w3"].map(Arc::from).to_vec();
    RedisPrefixIndex::start(SharedView {
        pool: Arc::new(RedisPool::start(&redis, clock).unwrap()),
        settings,
        backends,
        permits: 4,
        clock,
    })
}

fn prefix(number: u64) -> PrefixHash {
    PrefixHash::Sequence(SequenceHash(number))
}

fn send(
    router: &RedisPrefixIndex,
    backend: &str,
    kind: EventKind,
    number: u64,
    tokens: impl Into<Option<u32>>,
) {
    let event = PrefixEvent {
        kind,
        prefix: prefix(number),
        token_count: tokens.into(),
    };
    router
        .record(&Arc::from(backend), &event, Clock::system().now())
        .unwrap();
}

/// The holders of a prefix, best first.
async fn holders(router: &RedisPrefixIndex, number: u64) -> Vec<(String, u32, StorageTier)> {
    let holders = router.holders(&prefix(number)).await;
    holders
        .iter()
        .map(
            |Holder {
                 backend,
                 tokens,
                 tier,
             }| (backend.to_string(), *tokens, *tier),
        )
        .collect()
}

fn hot(backend: &str, tokens: u32) -> (String, u32, StorageTier) {
    (backend.to_owned(), tokens, StorageTier::GpuHot)
}

fn warm(backend: &str, tokens: u32) -> (String, u32, StorageTier) {
    (backend.to_owned(), tokens, StorageTier::StorageWarm)
}

/// Waits until `check` returns true.
async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let start = Clock::system().now();
    while !check().await {
        assert!(
            Clock::system().now().since(start) < PATIENCE,
            "waited {PATIENCE:?} for {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_shared(router: &RedisPrefixIndex) {
    until("redis to be seen", async || router.is_shared()).await;
}

async fn until_holders(
    router: &RedisPrefixIndex,
    number: u64,
    expected: &[(String, u32, StorageTier)],
) {
    let start = Clock::system().now();
    loop {
        let found = holders(router, number).await;
        if found == expected {
            return;
        }
        assert!(
            Clock::system().now().since(start) < PATIENCE,
            "found {found:?}, expected {expected:?}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
