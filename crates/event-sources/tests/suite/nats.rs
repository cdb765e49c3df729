//! A stream over NATS: from an engine's sockets through a relay and a real server into the index.

use event_sources::RelayNotice;

use crate::{
    engine::{self, history, removed, stored},
    nats_server::NatsServer,
    relayed::{
        RelayTask, RelayedEngine, SUBJECT, follow, follow_with, until_reported, until_synced,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn the_engines_blocks_are_in_the_index() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    engine.publish(stored(1));
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    let reader = follow(&server.url());
    let report = until_synced(&reader, &engine).await;
    assert_eq!(
        (&*report.source, report.epoch, report.last_seq),
        ("nats", 1, Some(0))
    );
    assert_eq!(report.endpoint, format!("{}/{SUBJECT}", server.url()));
    assert_eq!(
        report.replay_endpoint,
        Some(format!("{}/{SUBJECT}.replay", server.url()))
    );

    engine.publish(stored(2));
    engine.publish(removed(1));
    let report = until_reported(&reader, 2, &[2]).await;
    assert_eq!(
        (
            report.counts.gaps,
            report.counts.lost_batches,
            report.counts.decode_errors
        ),
        (0, 0, 0)
    );
    assert_eq!(reader.source.announced_block_size(), Some(engine::BLOCK));
    reader.source.stop().await;
    let counts = relay.stop().await;
    assert_eq!(
        (counts.dropped, counts.too_large, counts.not_relayable),
        (0, 0, 0)
    );
    assert!(counts.published >= 2, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_reader_gets_the_history_by_replay() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    // More than fits an answer whose end is trusted without a second request.
    engine.publish_all(&history(1_000));
    let reader = follow(&server.url());
    until_synced(&reader, &engine).await;
    engine.publish(stored(7));
    let report = until_synced(&reader, &engine).await;
    assert_eq!(
        (report.last_seq, report.counts.lost_batches),
        (Some(1_000), 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_configured_topic_is_followed() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    let reader = follow_with(&server.url(), |spec| spec.topic = "kv@a".into());
    reader
        .until("the stream", |report, _| report.state == "live")
        .await;
    let client = async_nats::connect(server.url()).await.unwrap();
    for (topic, seq, n) in [("kv@b", "0", 1), ("kv@a", "0", 2)] {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Warmroute-Seq", seq);
        headers.insert("Warmroute-Topic", topic);
        client
            .publish_with_headers(SUBJECT, headers, stored(n).into())
            .await
            .unwrap();
    }
    let report = until_reported(&reader, 0, &[2]).await;
    assert_eq!((report.counts.batches, report.counts.decode_errors), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_lost_while_the_server_was_down_are_replayed() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    let reader = follow(&server.url());
    engine.publish(stored(1));
    until_synced(&reader, &engine).await;

    server.kill();
    relay
        .until(|notice| matches!(notice, RelayNotice::NatsLost(_)))
        .await;
    let report = reader
        .until("the loss", |report, _| report.state == "connecting")
        .await;
    assert!(report.last_error.unwrap().contains("nats://127.0.0.1"));
    engine.publish_all(&[(0, removed(1)), (0, stored(2)), (0, stored(3))]);
    server.start_again();
    let report = until_synced(&reader, &engine).await;
    assert_eq!((report.epoch, reader.resident()), (1, vec![2, 3]));
    assert_eq!(reader.source.counters().reconnects, 1);
    engine.publish(stored(4));
    until_synced(&reader, &engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_or_killed_relay_is_noticed_and_its_successor_followed() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    let reader = follow(&server.url());
    engine.publish(stored(1));
    until_synced(&reader, &engine).await;

    relay.stop().await;
    reader
        .until("the farewell", |report, _| report.state == "connecting")
        .await;
    engine.publish(stored(2));
    let relay = RelayTask::start(&engine, &server.url());
    let report = until_synced(&reader, &engine).await;
    assert_eq!(
        (report.epoch, reader.resident()),
        (1, vec![1, 2]),
        "the same engine as before"
    );

    relay.kill().await;
    engine.publish(stored(3));
    engine.publish(removed(2));
    let _relay = RelayTask::start(&engine, &server.url());
    let report = until_synced(&reader, &engine).await;
    assert_eq!((report.epoch, reader.resident()), (1, vec![1, 3]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_blocks_of_a_restarted_engine_are_cleared() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let _relay = RelayTask::start(&engine, &server.url());
    let reader = follow(&server.url());
    engine.publish_all(&[(0, stored(1)), (0, stored(2))]);
    until_synced(&reader, &engine).await;

    let engine = engine.restart().await;
    engine.publish_all(&[(0, stored(5)), (0, stored(6)), (0, stored(7))]);
    let report = until_synced(&reader, &engine).await;
    assert_eq!((report.epoch, reader.resident()), (2, vec![5, 6, 7]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_restart_while_the_server_is_away_is_recognised() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    let reader = follow(&server.url());
    engine.publish(stored(1));
    until_synced(&reader, &engine).await;

    server.kill();
    let engine = engine.restart().await;
    // The numbers also fit the engine's previous run.
    engine.publish_all(&[(0, stored(5)), (0, stored(6)), (0, stored(7))]);
    relay
        .until(|notice| matches!(notice, RelayNotice::EngineConnected(_)))
        .await;
    server.start_again();
    let report = until_synced(&reader, &engine).await;
    assert_eq!((report.epoch, reader.resident()), (2, vec![5, 6, 7]));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_relay_or_an_engine_the_stream_is_not_connected() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let reader = follow(&server.url());
    let has_error = |report: &event_sources::StreamReport, text: &str| {
        report.state == "connecting"
            && report
                .last_error
                .as_ref()
                .is_some_and(|error| error.contains(text))
    };
    reader
        .until("nobody", |report, _| {
            has_error(report, "start `warmroute events relay`")
        })
        .await;

    let engine = RelayedEngine::start().await;
    let (endpoint, replay) = (engine.endpoint.clone(), engine.replay.clone());
    drop(engine);
    let lossy_engine = RelayedEngine::start().await;
    let relay = RelayTask::with(&lossy_engine, &server.url(), |spec| {
        (spec.endpoint, spec.replay_endpoint) = (endpoint, Some(replay));
    });
    let not_connected = "connection to the engine";
    reader
        .until("no engine", |report, _| {
            has_error(report, not_connected) || has_error(report, "not connected to the")
        })
        .await;
    relay.kill().await;

    let _relay = RelayTask::start(&lossy_engine, &server.url());
    lossy_engine.publish(stored(3));
    until_synced(&reader, &lossy_engine).await;
    assert_eq!(
        reader.source.counters().reconnects,
        0,
        "only the engine's connections count"
    );
}

/// Returns a batch of almost a megabyte that names no block.
fn padding() -> Vec<u8> {
    let pad = vec![0; 900_000];
    let mut batch = vec![0x93, 0xcb];
    batch.extend(1.0_f64.to_be_bytes());
    batch.extend(b"\x91\x92\xa3Pad\xc6");
    batch.extend(u32::try_from(pad.len()).unwrap().to_be_bytes());
    batch.extend(pad);
    batch.push(0);
    batch
}

#[tokio::test(flavor = "multi_thread")]
async fn the_relays_queue_is_bounded_and_dropped_batches_are_replayed() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::start(&engine, &server.url());
    relay.until_relaying().await;
    engine.until_subscribed().await;
    let reader = follow(&server.url());
    engine.publish(stored(1));
    until_synced(&reader, &engine).await;
    server.kill();
    relay
        .until(|notice| matches!(notice, RelayNotice::NatsLost(_)))
        .await;
    engine.publish(stored(2));
    let overflowing = relay.until(|notice| *notice == RelayNotice::Overflowing);
    let talking = async {
        // One at a time, so that the engine's own queue does not overflow.
        loop {
            engine.publish(padding());
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        _ = overflowing => {}
        () = talking => {}
    }
    engine.publish(stored(3));
    server.start_again();
    let notice = relay
        .until(|notice| matches!(notice, RelayNotice::Dropped { .. }))
        .await;
    assert_ne!(notice, RelayNotice::Dropped { messages: 0 });
    let report = until_synced(&reader, &engine).await;
    assert_eq!(
        (report.epoch, report.counts.lost_batches, reader.resident()),
        (1, 0, vec![1, 2, 3])
    );
    assert!(relay.stop().await.dropped > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_a_replay_socket_is_followed_from_its_next_batch() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let engine = RelayedEngine::start().await;
    let mut relay = RelayTask::with(&engine, &server.url(), |spec| spec.replay_endpoint = None);
    relay.until_relaying().await;
    let reader = follow(&server.url());
    let report = reader
        .until("the refusal", |report, _| report.state == "stale")
        .await;
    assert!(
        report
            .last_error
            .unwrap()
            .contains("start it with --replay")
    );
    engine.until_subscribed().await;
    engine.publish(stored(1));
    reader.until_resident(&[1]).await;
    assert_eq!(engine.request_count(), 0);
}
