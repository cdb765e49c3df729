//! Replicas that share one log of an engine's events, on a real server with JetStream.

mod fleet;

use std::time::Duration;

use contract_id::contract;
use event_log::StreamRole;
use nats_client::HeaderMap;
use net::Clock;

use self::fleet::{Partition, Replica, TestEngine, jetstream, logged, names, until, until_owned};
use crate::{
    engine::{self, removed, stored},
    nats_server::NatsServer,
};

/// Asserts that no batch was lost, repeated as a new one, or cleared.
fn assert_untroubled(replica: &Replica) {
    let report = replica.source.report();
    assert_eq!(
        (
            report.epoch,
            report.counts.restarts,
            report.counts.lost_batches
        ),
        (1, 0, 0),
        "{}: {report:?}",
        replica.name
    );
}

async fn until_all_equal(replicas: &[Replica], engine: &TestEngine) {
    for replica in replicas {
        replica.until_equal(&engine.published).await;
    }
}

#[tokio::test]
#[contract("DY20")]
#[contract("V41")]
async fn one_replica_publishes_each_batch_once_and_all_have_the_same_index() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let mut engine = TestEngine::start().await;
    engine.publish(5);
    let replicas = ["a", "b", "c"].map(|name| Replica::start(name, &server.url(), &engine));
    until_owned(&replicas).await;
    until_all_equal(&replicas, &engine).await;
    for _ in 0..20 {
        engine.publish(10);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    until_all_equal(&replicas, &engine).await;
    // A machine that stands still may let another one take over.
    let sources = || {
        let mut sources = replicas.each_ref().map(|it| it.source.report().source);
        sources.sort_unstable();
        sources
    };
    until("two followers", &replicas[0], || {
        sources() == ["nats", "nats", "zmq"]
    })
    .await;
    let owner = until_owned(&replicas).await;
    until("one reader at the engine", &replicas[owner], || {
        engine.subscribers() == 1
    })
    .await;
    replicas.iter().for_each(assert_untroubled);
    let numbers = logged(&server, &names("prod")).await;
    let tail = &numbers[numbers.len() - 200..];
    assert_eq!(tail, (5..205).collect::<Vec<u64>>(), "each once, in order");
}

#[tokio::test]
#[contract("DY20")]
async fn the_stream_of_a_killed_owner_is_taken_over_and_nothing_is_missing() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let mut engine = TestEngine::start().await;
    let mut replicas =
        Vec::from(["a", "b", "c"].map(|name| Replica::start(name, &server.url(), &engine)));
    let owner = until_owned(&replicas).await;
    engine.publish(20);
    until_all_equal(&replicas, &engine).await;
    drop(replicas.remove(owner));
    let clock = Clock::system();
    let killed = clock.now();
    engine.publish(20);
    let has_owner = || {
        let mut roles = replicas.iter().map(Replica::role);
        roles.any(|role| role == StreamRole::Owner)
    };
    until("another owner", &replicas[0], has_owner).await;
    println!("taken over after {:?}", clock.now().since(killed));
    engine.publish(20);
    until_all_equal(&replicas, &engine).await;
    until_owned(&replicas).await;
    engine.publish(20);
    until_all_equal(&replicas, &engine).await;
    replicas.iter().for_each(assert_untroubled);
}

#[tokio::test]
#[contract("F52")]
async fn without_a_server_every_replica_follows_the_engine_and_returns_later() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start_with_store();
    let mut engine = TestEngine::start().await;
    server.kill();
    let replicas = ["a", "b"].map(|name| Replica::start(name, &server.url(), &engine));
    engine.publish(10);
    until_all_equal(&replicas, &engine).await;
    assert!(!replicas[0].log.report().connected);
    server.start_again();
    until_owned(&replicas).await;
    engine.publish(10);
    until_all_equal(&replicas, &engine).await;
    server.kill();
    engine.publish(10);
    until_all_equal(&replicas, &engine).await;
    for replica in &replicas {
        replica.until_role(|role| role == StreamRole::Alone).await;
    }
    engine.publish(10);
    until_all_equal(&replicas, &engine).await;
    server.start_again();
    until_owned(&replicas).await;
    engine.publish(10);
    until_all_equal(&replicas, &engine).await;
    replicas.iter().for_each(assert_untroubled);
}

#[tokio::test]
#[contract("F53")]
async fn a_partition_of_each_replica_in_turn_heals_without_a_wrong_block() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let mut engine = TestEngine::start().await;
    let (to_a, to_b) = (
        Partition::start(&server).await,
        Partition::start(&server).await,
    );
    let replicas = [
        Replica::start("a", &to_a.url, &engine),
        Replica::start("b", &to_b.url, &engine),
        Replica::start("c", &server.url(), &engine),
    ];
    until_owned(&replicas).await;
    engine.publish(20);
    until_all_equal(&replicas, &engine).await;
    for partition in [&to_a, &to_b] {
        partition.cut();
        for _ in 0..30 {
            engine.publish(5);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        until_all_equal(&replicas, &engine).await;
        partition.heal();
        engine.publish(5);
        until_owned(&replicas).await;
        engine.publish(5);
        until_all_equal(&replicas, &engine).await;
    }
    replicas.iter().for_each(assert_untroubled);
}

#[tokio::test]
#[contract("F54")]
async fn a_stream_that_was_deleted_is_made_anew() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let mut engine = TestEngine::start().await;
    let replicas = ["a", "b"].map(|name| Replica::start(name, &server.url(), &engine));
    until_owned(&replicas).await;
    engine.publish(20);
    until_all_equal(&replicas, &engine).await;
    let jetstream = jetstream(&server).await;
    jetstream
        .delete_stream(names("prod").stream())
        .await
        .unwrap();
    engine.publish(20);
    until_all_equal(&replicas, &engine).await;
    let is_back = || {
        let reports = replicas.iter().map(|replica| replica.log.report());
        reports.into_iter().all(|report| report.connected)
    };
    until_owned(&replicas).await;
    engine.publish(20);
    until("the log", &replicas[0], is_back).await;
    until_all_equal(&replicas, &engine).await;
    replicas.iter().for_each(assert_untroubled);
}

#[tokio::test]
#[contract("F54")]
async fn messages_that_the_log_lost_come_from_the_engine() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let mut engine = TestEngine::start().await;
    let first = [Replica::start("a", &server.url(), &engine)];
    until_owned(&first).await;
    engine.publish(40);
    until_all_equal(&first, &engine).await;
    let jetstream = jetstream(&server).await;
    let names = names("prod");
    until("the whole log", &first[0], || {
        first[0].log.report().counts.published >= 40
    })
    .await;
    for log_seq in 10..20 {
        jetstream
            .delete_message(names.stream(), log_seq)
            .await
            .unwrap();
    }
    let late = [Replica::start("b", &server.url(), &engine)];
    until_all_equal(&late, &engine).await;
    engine.publish(5);
    until_all_equal(&late, &engine).await;
    late.iter().chain(&first).for_each(assert_untroubled);
}

#[tokio::test]
#[contract("F54")]
async fn what_the_log_says_without_a_proof_is_asked_of_the_engine() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let mut engine = TestEngine::start().await;
    let replicas = ["a", "b"].map(|name| Replica::start(name, &server.url(), &engine));
    let owner = until_owned(&replicas).await;
    let follower = &replicas[1 - owner];
    engine.publish(8);
    until_all_equal(&replicas, &engine).await;
    let jetstream = jetstream(&server).await;
    let subject = names("prod").subject("w7", 0);
    let forge = async |seq: &str, tail: Option<&str>, payload: Vec<u8>| {
        let before = follower.log.report().counts.repairs;
        let mut headers = HeaderMap::new();
        headers.insert("Warmroute-Seq", seq);
        if let Some(digest) = tail {
            headers.insert("Warmroute-Tail", digest);
        }
        jetstream
            .publish(&subject, headers, payload.into())
            .await
            .unwrap();
        let is_repaired = || follower.log.report().counts.repairs > before;
        until("a repair", follower, is_repaired).await;
    };
    forge("8", None, stored(9)).await;
    forge("99", None, stored(9)).await;
    forge("3", None, removed(2)).await;
    forge("8", Some("00000000000000aa"), vec![]).await;
    follower.until_equal(&engine.published).await;
    engine.publish(8);
    until_all_equal(&replicas, &engine).await;
    replicas.iter().for_each(assert_untroubled);
}

#[tokio::test]
async fn a_restarted_engine_is_recognised_by_owner_and_followers() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let mut engine = TestEngine::start().await;
    let replicas = ["a", "b"].map(|name| Replica::start(name, &server.url(), &engine));
    until_owned(&replicas).await;
    engine.publish(20);
    until_all_equal(&replicas, &engine).await;
    engine.restart(vec![(0, stored(7)), (1, stored(8))]).await;
    until_all_equal(&replicas, &engine).await;
    for replica in &replicas {
        assert_eq!(replica.source.report().counts.restarts, 1);
    }
}

#[tokio::test]
async fn every_replica_follows_a_publisher_without_numbers_itself() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let engine = TestEngine::start().await;
    let replicas = ["a", "b"].map(|name| Replica::start(name, &server.url(), &engine));
    until_owned(&replicas).await;
    let holds = |replica: &Replica| replica.index.digest() == engine::truth(&[(0, stored(1))]);
    let everywhere = async {
        while !replicas.iter().all(holds) {
            engine.publish_unnumbered(&stored(1));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let found = tokio::time::timeout(engine::PATIENCE, everywhere).await;
    assert!(found.is_ok(), "{:?}", replicas[0].log.report());
    until("both readers", &replicas[0], || engine.subscribers() == 2).await;
}

#[tokio::test]
#[contract("DY36")]
async fn fleets_with_other_names_on_one_server_see_nothing_of_each_other() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let (mut left, mut right) = (TestEngine::start().await, TestEngine::start().await);
    let of_left = [Replica::start_in(names("left"), "a", &server.url(), &left)];
    let of_right = [Replica::start_in(
        names("right"),
        "b",
        &server.url(),
        &right,
    )];
    until_owned(&of_left).await;
    until_owned(&of_right).await;
    left.publish(8);
    right.publish(3);
    until_all_equal(&of_left, &left).await;
    until_all_equal(&of_right, &right).await;
    for replica in of_left.iter().chain(&of_right) {
        let report = replica.log.report();
        assert_eq!(report.replicas.len(), 1);
    }
    until("its log", &of_left[0], || {
        of_left[0].log.report().counts.published >= 8
    })
    .await;
    assert_eq!(
        logged(&server, &names("left")).await,
        (0..8).collect::<Vec<u64>>()
    );
    assert!(logged(&server, &names("right")).await.len() <= 3);
}

#[tokio::test]
async fn a_full_disk_makes_every_replica_follow_the_engine() {
    test_programs::require!(NatsServer);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("nats.conf");
    let store = folder.path().join("store");
    let text = format!(
        "jetstream {{ store_dir: {:?}, max_file_store: 4096, max_memory_store: 10000000 }}",
        store.display().to_string()
    );
    std::fs::write(&config, text).unwrap();
    let server = NatsServer::start(&["-c", config.to_str().unwrap()]);
    let mut engine = TestEngine::start().await;
    let replicas = ["a", "b"].map(|name| Replica::start(name, &server.url(), &engine));
    until_owned(&replicas).await;
    for _ in 0..20 {
        engine.publish(10);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until_all_equal(&replicas, &engine).await;
    let failed = || {
        let mut reports = replicas.iter().map(|replica| replica.log.report());
        reports.any(|report| report.counts.dropped > 0)
    };
    until("the full disk", &replicas[0], failed).await;
    engine.publish(10);
    until_all_equal(&replicas, &engine).await;
    replicas.iter().for_each(assert_untroubled);
    assert_eq!(engine::truth(&engine.published), replicas[0].index.digest());
}
