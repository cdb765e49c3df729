//! Events without trust, and the engine's own counters that decide it.

use std::sync::Arc;

use fleet::CacheSource;
use kv_blocks::{DpRank, Target, WorkerId};

use crate::{
    events::{TARGET, live, publisher, publishing_engine, store},
    fake_engine::FakeEngine,
    setup::{parts, start, worker},
};

#[tokio::test]
async fn an_untrusted_target_is_predicted_and_its_announced_blocks_are_kept() {
    let (publisher, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let engine = publishing_engine(&endpoint, 32).await;
    let parts = parts(vec![worker("w1", &engine.url())]);
    let index = Arc::clone(&parts.index);
    let running = start(parts);
    live(&running).await;
    store(&publisher, 0, 32).await;
    running
        .until("a block", |_| index.blocks_per_tier(TARGET)[0] == 1)
        .await;

    running.fleet.trust(TARGET, false);
    let snapshot = running.fleet.snapshot();
    assert_eq!(
        snapshot.workers[0].cache_source(),
        CacheSource::Predicted,
        "at once"
    );
    assert!(
        snapshot.workers[0].ranks[0].stream.is_some(),
        "its stream is followed all the same"
    );
    assert!(
        running
            .metrics()
            .contains("warmroute_cache_source{worker=\"w1\",source=\"predicted\"} 1\n")
    );
    store(&publisher, 1, 64).await;
    running
        .until("a new block", |_| {
            running.fleet.streams()[0].last_seq == Some(1)
        })
        .await;
    // It publishes without a replay socket: its earlier events could not be recovered.
    assert_eq!(index.blocks_per_tier(TARGET)[0], 2);
    assert_eq!(
        running.fleet.snapshot().workers[0].cache_source(),
        CacheSource::Predicted
    );

    running.fleet.trust(TARGET, true);
    live(&running).await;
    assert_eq!(
        index.blocks_per_tier(TARGET)[0],
        2,
        "blocks announced in the meantime count"
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn distrust_survives_a_lost_connection_and_unknown_targets_are_ignored() {
    let (publisher, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let engine = publishing_engine(&endpoint, 32).await;
    let running = start(parts(vec![worker("w1", &engine.url())]));
    live(&running).await;
    running.fleet.trust(TARGET, false);
    running.fleet.trust(
        Target {
            worker: WorkerId(7),
            rank: DpRank(0),
        },
        false,
    );
    drop(publisher);
    let stream = |state: &'static str| {
        move |snapshot: &fleet::Snapshot| snapshot.workers[0].ranks[0].stream == Some(state)
    };
    running.until("connecting", stream("connecting")).await;
    let (_publisher, _) = self::publisher(&endpoint.to_string()).await;
    let snapshot = running.until("live", stream("live")).await;
    assert_eq!(snapshot.workers[0].cache_source(), CacheSource::Predicted);
    running.fleet.trust(TARGET, true);
    live(&running).await;
    running.fleet.stop().await;
}

#[tokio::test]
async fn the_engines_counters_are_known_by_rank_from_the_first_check_on() {
    let engine = FakeEngine::serving("m").await;
    engine.answer("/version", 200, r#"{"version":"0.32.0"}"#);
    let page = "vllm:cache_config_info{block_size=\"16\",engine=\"1\"} 1\nvllm:prefix_cache_queries_total{engine=\"0\"} 96\n\
                vllm:prefix_cache_hits_total{engine=\"0\"} 64\nvllm:prefix_cache_queries_total{engine=\"1\"} 32\n";
    engine.answer("/metrics", 200, page);
    let silent = FakeEngine::serving("m").await;
    let running = start(parts(vec![
        worker("w1", &engine.url()),
        worker("w2", &silent.url()),
    ]));
    running.ready("w1").await;
    running.ready("w2").await;
    let counters = running.fleet.prefix_cache_counters();
    let of = |rank: u32| {
        counters
            .get(&Target {
                worker: WorkerId(0),
                rank: DpRank(rank),
            })
            .map(|it| (it.queries, it.hits))
    };
    assert_eq!(
        (of(0), of(1), counters.len()),
        (Some((96, 64)), Some((32, 0)), 2)
    );
    running.fleet.stop().await;
}

#[tokio::test]
async fn a_publisher_whose_numbers_start_again_has_restarted() {
    let (publisher, endpoint) = publisher("tcp://127.0.0.1:0").await;
    let engine = publishing_engine(&endpoint, 32).await;
    let running = start(parts(vec![worker("w1", &engine.url())]));
    live(&running).await;
    for seq in [0, 1] {
        store(&publisher, seq, 32).await;
    }
    running
        .until("both batches", |_| {
            running.fleet.streams()[0].last_seq == Some(1)
        })
        .await;
    assert_eq!(running.fleet.stream_restarts(), [(TARGET, 0)].into());
    store(&publisher, 0, 32).await;
    running
        .until("the restart", |_| {
            running.fleet.stream_restarts()[&TARGET] == 1
        })
        .await;
    running.fleet.stop().await;
}
