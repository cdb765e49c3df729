//! A stream over real sockets: live batches, history, gaps, restarts.

use std::time::Duration;

use contract_id::contract;
use kv_events::frames::ReplayForm;
use zmtp::{Pub, PubSettings};

use crate::engine::{
    self, PATIENCE, ReplaySocket, Replies, TestSource, any, cleared, live, publisher, removed,
    stored,
};

#[tokio::test]
async fn live_events_reach_the_index() {
    let (engine, endpoint) = publisher(&any()).await;
    let reader = TestSource::follow(&endpoint, None);
    reader.until_subscribed(&engine).await;

    engine.send(&live(0, &stored(1)));
    engine.send(&live(1, &stored(2)));
    let report = reader.until_resident(&[1, 2]).await;
    assert_eq!((&*report.state, report.epoch), ("live", 1));
    assert_eq!(report.endpoint, endpoint.to_string());

    engine.send(&live(2, &removed(1)));
    reader.until_resident(&[2]).await;
    engine.send(&live(3, &cleared()));
    let report = reader.until_resident(&[]).await;
    assert_eq!(
        (report.last_seq, report.counts.batches, report.counts.gaps),
        (Some(3), 4, 0)
    );
    assert!(report.lag_ms.is_some_and(|ms| ms > 0.0) && report.last_event_at.is_some());

    let counters = reader.source.counters();
    assert_eq!(
        (counters.stored, counters.removed, counters.cleared),
        (2, 1, 1)
    );
    assert_eq!(reader.source.announced_block_size(), Some(engine::BLOCK));
    reader.source.stop().await;
}

#[tokio::test]
async fn history_from_before_the_subscription_is_replayed() {
    for form in [ReplayForm::Old, ReplayForm::New] {
        let (engine, endpoint) = publisher(&any()).await;
        let history = vec![(0, stored(1)), (1, stored(2)), (2, removed(1))];
        let mut replay = ReplaySocket::bind(Replies::History(history, form)).await;
        let reader = TestSource::follow(&endpoint, Some(&replay.endpoint));

        assert_eq!(
            replay.requests.recv().await,
            Some(0),
            "the whole history is requested"
        );
        reader
            .until("history", |report, resident| {
                report.state == "live" && resident == [2]
            })
            .await;
        reader.until_subscribed(&engine).await;
        engine.send(&live(3, &stored(3)));
        let report = reader.until_resident(&[2, 3]).await;
        assert_eq!(
            (
                report.counts.gaps,
                report.counts.lost_batches,
                report.counts.duplicates
            ),
            (0, 0, 0)
        );
        assert_eq!(report.replay_endpoint, Some(replay.endpoint.to_string()));
        reader.source.stop().await;
    }
}

#[tokio::test]
async fn a_gap_is_filled_by_replay() {
    let (engine, endpoint) = publisher(&any()).await;
    let mut replay = ReplaySocket::bind(Replies::History(vec![], ReplayForm::New)).await;
    let reader = TestSource::follow(&endpoint, Some(&replay.endpoint));
    assert_eq!(replay.requests.recv().await, Some(0));
    reader
        .until("the end of an empty history", |report, _| {
            report.state == "live"
        })
        .await;
    reader.until_subscribed(&engine).await;
    engine.send(&live(0, &stored(0)));
    reader.until_resident(&[0]).await;

    let all = vec![
        (0, stored(0)),
        (1, stored(1)),
        (2, stored(2)),
        (3, stored(3)),
    ];
    replay.then(Replies::History(all, ReplayForm::New));
    engine.send(&live(3, &stored(3)));
    assert_eq!(
        replay.requests.recv().await,
        Some(1),
        "only the missing batches are requested"
    );
    let report = reader.until_resident(&[0, 1, 2, 3]).await;
    assert_eq!((report.counts.gaps, report.counts.lost_batches), (1, 0));
    assert_eq!(reader.source.counters().gaps, 1);
    reader.source.stop().await;
}

#[tokio::test]
async fn a_gap_that_the_engine_cannot_fill_is_accepted() {
    let (engine, endpoint) = publisher(&any()).await;
    let mut replay =
        ReplaySocket::bind(Replies::History(vec![(0, stored(0))], ReplayForm::New)).await;
    let reader = TestSource::follow(&endpoint, Some(&replay.endpoint));
    assert_eq!(replay.requests.recv().await, Some(0));
    reader.until_resident(&[0]).await;
    reader.until_subscribed(&engine).await;

    replay.then(Replies::History(vec![(2, stored(2))], ReplayForm::New));
    engine.send(&live(2, &stored(2)));
    let report = reader
        .until("the hole's end", |report, resident| {
            report.state == "live" && resident == [0, 2]
        })
        .await;
    assert_eq!(
        (
            report.counts.gaps,
            report.counts.lost_batches,
            report.last_seq
        ),
        (1, 1, Some(2))
    );
    reader.source.stop().await;
}

#[tokio::test]
#[contract("F60")]
async fn a_restarted_engines_blocks_are_cleared_and_it_is_followed_again() {
    let (engine, endpoint) = publisher(&any()).await;
    let reader = TestSource::follow(&endpoint, None);
    reader.until_subscribed(&engine).await;
    for seq in 0..3 {
        engine.send(&live(seq, &stored(u32::try_from(seq).unwrap())));
    }
    reader.until_resident(&[0, 1, 2]).await;
    drop(engine);
    let report = reader
        .until("the disconnect", |report, _| report.state == "connecting")
        .await;
    assert!(report.last_error.is_some());

    let (engine, _) = publisher(&endpoint).await;
    reader.until_subscribed(&engine).await;
    engine.send(&live(0, &stored(9)));
    let report = reader.until_resident(&[9]).await;
    assert_eq!(
        (report.epoch, report.counts.restarts, report.last_seq),
        (2, 1, Some(0))
    );
    assert_eq!(reader.source.counters().resets, 1);
    reader.source.stop().await;
}

#[tokio::test]
async fn an_unseen_restart_is_recovered_from_the_replay() {
    let (engine, endpoint) = publisher(&any()).await;
    let before = vec![(0, stored(0)), (1, stored(1))];
    let mut replay = ReplaySocket::bind(Replies::History(before, ReplayForm::New)).await;
    let reader = TestSource::follow(&endpoint, Some(&replay.endpoint));
    assert_eq!(replay.requests.recv().await, Some(0));
    reader.until_resident(&[0, 1]).await;

    // The new process has already passed the old one's last number when the stream reconnects.
    let after = vec![(0, stored(5)), (1, stored(6)), (2, stored(7))];
    replay.then(Replies::History(after, ReplayForm::New));
    drop(engine);
    let (_engine, _) = publisher(&endpoint).await;
    let report = reader.until_resident(&[5, 6, 7]).await;
    assert_eq!(report.epoch, 2);
    reader.source.stop().await;
}

#[tokio::test]
async fn a_lost_connection_without_a_restart_keeps_the_known_blocks() {
    let (engine, endpoint) = publisher(&any()).await;
    let history = vec![(0, stored(0)), (1, stored(1))];
    let mut replay = ReplaySocket::bind(Replies::History(history, ReplayForm::New)).await;
    let reader = TestSource::follow(&endpoint, Some(&replay.endpoint));
    assert_eq!(replay.requests.recv().await, Some(0));
    reader.until_resident(&[0, 1]).await;

    replay.then(Replies::History(
        vec![(0, stored(0)), (1, stored(1)), (2, stored(2))],
        ReplayForm::New,
    ));
    drop(engine);
    let (_engine, _) = publisher(&endpoint).await;
    let report = reader.until_resident(&[0, 1, 2]).await;
    assert_eq!((report.epoch, report.counts.restarts), (1, 0));
    reader.source.stop().await;
}

#[tokio::test]
async fn live_events_that_arrive_during_a_replay_wait_for_it() {
    // Where the machine stands still, the replay may be given up before the event arrives.
    for _ in 0..10 {
        if waits_for_the_replay().await {
            return;
        }
    }
    panic!("no event waited for a replay");
}

/// Sends an event during a replay that is never answered; returns whether it was seen to wait.
async fn waits_for_the_replay() -> bool {
    let (engine, endpoint) = publisher(&any()).await;
    let mut replay = ReplaySocket::bind(Replies::Silence).await;
    let reader = TestSource::with(&endpoint, Some(&replay.endpoint), |spec| {
        spec.settings.replay_timeout = Duration::from_millis(500);
    });
    assert_eq!(replay.requests.recv().await, Some(0));
    reader.until_subscribed(&engine).await;
    engine.send(&live(4, &stored(4)));
    let report = reader
        .until("the event", |report, resident| {
            report.lag_events > 0 || resident == [4]
        })
        .await;
    if report.lag_events == 0 || !reader.resident().is_empty() {
        return false;
    }
    assert_eq!(report.state, "replaying");

    let report = reader
        .until("the end of the time limit", |_, resident| resident == [4])
        .await;
    assert_eq!(
        report.state, "stale",
        "history is missing and will be requested again"
    );
    assert!(report.last_error.unwrap().contains("was silent for 500ms"));
    reader.source.stop().await;
    true
}

#[tokio::test]
async fn a_broken_replay_loses_only_the_replay() {
    let (engine, endpoint) = publisher(&any()).await;
    let replay = ReplaySocket::bind(Replies::Frames(vec![b"a".to_vec(), b"b".to_vec()])).await;
    let reader = TestSource::follow(&endpoint, Some(&replay.endpoint));
    let report = reader
        .until("the failure", |report, _| report.state == "stale")
        .await;
    assert!(report.last_error.unwrap().contains("2 frames"));
    reader.until_subscribed(&engine).await;
    engine.send(&live(0, &stored(1)));
    reader.until_resident(&[1]).await;
    reader.source.stop().await;
}

#[tokio::test]
async fn an_engine_that_connects_to_the_router_is_followed() {
    // A free port, for the reader to bind.
    let (probe, endpoint) = publisher(&any()).await;
    drop(probe);
    let reader = TestSource::with(&endpoint, None, |spec| spec.bind = true);
    let engine = Pub::connect(&endpoint, PubSettings::default()).unwrap();
    reader.until_subscribed(&engine).await;
    engine.send(&live(0, &stored(1)));
    let report = reader.until_resident(&[1]).await;
    assert_eq!(report.state, "live");
    reader.source.stop().await;
}

#[tokio::test]
async fn only_the_configured_topic_is_followed() {
    let (engine, endpoint) = publisher(&any()).await;
    let reader = TestSource::with(&endpoint, None, |spec| spec.topic = "kv@a".into());
    reader.until_subscribed(&engine).await;
    engine.send(&kv_events::frames::encode_live(b"kv@b", 0, &stored(1)));
    engine.send(&kv_events::frames::encode_live(b"kv@a", 0, &stored(2)));
    let report = reader.until_resident(&[2]).await;
    assert_eq!(report.counts.batches, 1);
    reader.source.stop().await;
}

#[tokio::test]
#[contract("F62")]
async fn a_quiet_stream_is_stale_until_its_next_batch() {
    let (engine, endpoint) = publisher(&any()).await;
    let reader = TestSource::with(&endpoint, None, |spec| {
        spec.settings.stale_after = Duration::from_millis(200)
    });
    reader
        .until("staleness", |report, _| report.state == "stale")
        .await;
    reader.until_subscribed(&engine).await;
    engine.send(&live(0, &stored(1)));
    reader
        .until("life", |report, _| report.state == "live")
        .await;
    reader
        .until("staleness again", |report, resident| {
            report.state == "stale" && resident == [1]
        })
        .await;
    reader.source.stop().await;
}

#[tokio::test]
async fn stopping_closes_the_connection_and_keeps_the_known_blocks() {
    let (engine, endpoint) = publisher(&any()).await;
    let reader = TestSource::follow(&endpoint, None);
    reader.until_subscribed(&engine).await;
    engine.send(&live(0, &stored(1)));
    reader.until_resident(&[1]).await;
    let mut subscribers = engine.watch_subscribers();
    let index = reader.index;
    reader.source.stop().await;
    tokio::time::timeout(PATIENCE, subscribers.wait_for(|count| *count == 0))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(index.blocks_per_tier(engine::TARGET), [1, 0, 0, 0]);
}

#[tokio::test]
async fn an_endpoint_without_a_host_is_reported_and_not_followed() {
    let reader = TestSource::follow(&"tcp://*:5557".parse().unwrap(), None);
    let report = reader
        .until("the report", |report, _| report.last_error.is_some())
        .await;
    assert!(
        report
            .last_error
            .unwrap()
            .contains("put the engine's host and port in it")
    );
    assert_eq!(report.state, "connecting");
    reader.source.stop().await;
}
