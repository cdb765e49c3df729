//! Routers that share their engines' events and a snapshot over a NATS server with JetStream.

mod killed;
mod proxy;
mod slow_bus;

use std::time::Duration;

use contract_id::contract;
use event_log::LogNames;
use nats_client::JetStream;
use serde_json::Value;

use crate::{
    harness::{LONGEST_WAIT, Program, RawClient, RouterQueries, chat, eventually, words},
    nats_server::NatsServer,
};

/// A router in front of the engines, with these lines of the section `replicas`.
fn router(engines: &[Program], replicas: &str) -> Program {
    Program::serve_with(&config(engines, replicas), &[], &[]).ready(engines.len())
}

fn config(engines: &[Program], replicas: &str) -> String {
    let mut workers = String::new();
    for (number, engine) in engines.iter().enumerate() {
        workers += &format!("  - {{name: w{number}, url: \"{}\"}}\n", engine.url());
    }
    format!("replicas: {{{replicas}}}\nworkers:\n{workers}")
}

/// The lines of a router that uses this server.
fn over(server: &NatsServer) -> String {
    format!("mode: nats, nats: {{url: \"{}\"}}", server.url())
}

fn get(router: &Program, path: &str) -> Value {
    RawClient::get(&router.admin(), path).json()
}

fn digest(router: &Program) -> Value {
    get(router, "/admin/kv-index/digest")
}

/// The transports of the streams, sorted.
fn sources(router: &Program) -> Vec<String> {
    let streams = get(router, "/admin/streams");
    let streams = streams["streams"].as_array().unwrap();
    let source = |stream: &Value| stream["source"].as_str().unwrap().to_owned();
    streams.iter().map(source).collect()
}

/// The value of a series without labels.
fn metric(router: &Program, name: &str) -> Option<f64> {
    let page = RawClient::get(&router.admin(), "/metrics").text();
    let line = page.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(' '))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

fn is_connected(router: &Program) -> bool {
    metric(router, "warmroute_bus_connected") == Some(1.0)
}

fn until_logged(router: &Program, text: &str) {
    eventually(text, || router.stderr().contains(text).then_some(()));
}

/// Waits until the presence of routers that were killed has expired.
fn until_nobody_is_present(server: &NatsServer) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let connection = server.dialer().open().await.unwrap();
        let jetstream = JetStream::new(connection.client.clone());
        let names = LogNames::new("warmroute-kv", "warmroute", "router").unwrap();
        let stream = format!("KV_{}", names.bucket("replicas"));
        let expiry = async {
            while jetstream.stream_info(&stream).await.unwrap().state.messages > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let expired = tokio::time::timeout(LONGEST_WAIT, expiry).await;
        expired.expect("the presence of a killed router expires");
    });
}

/// Sends prompts that no engine knows.
fn traffic(router: &Program, topic: &str, count: usize) {
    for number in 0..count {
        let body = chat("sim", &words(&format!("{topic} {number}"), 100), 4).to_string();
        let reply = RawClient::post(&router.data(), "/v1/chat/completions", body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

/// Waits until the routers have the same blocks, and some.
fn until_equal(routers: &[&Program]) {
    eventually("the same index everywhere", || {
        let first = digest(routers[0]);
        let has_blocks = first["targets"]
            .as_array()
            .is_some_and(|targets| targets.iter().any(|target| target["blocks"] != 0));
        (has_blocks && routers.iter().all(|router| digest(router) == first)).then_some(())
    });
}

#[test]
#[contract("DY20", "V41", "F52")]
fn routers_on_one_server_share_one_reading_of_each_engine() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start_with_store();
    let engines = [Program::engine(&[]), Program::engine(&[])];
    let alone = router(&engines, "mode: none");
    let mut shared: Vec<Program> = (0..3).map(|_| router(&engines, &over(&server))).collect();
    eventually("one reader of each engine", || {
        let all: Vec<String> = shared.iter().flat_map(sources).collect();
        let direct = all.iter().filter(|source| *source == "zmq").count();
        (all.len() == 6 && direct == 2).then_some(())
    });
    traffic(&shared[0], "first", 6);
    until_equal(&[&alone, &shared[0], &shared[1], &shared[2]]);

    let owner = shared
        .iter()
        .position(|router| sources(router).contains(&"zmq".to_owned()));
    shared.remove(owner.unwrap()).kill();
    traffic(&shared[0], "after the kill", 6);
    until_equal(&[&alone, &shared[0], &shared[1]]);

    server.kill();
    eventually("the loss of the bus", || {
        shared
            .iter()
            .all(|router| !is_connected(router))
            .then_some(())
    });
    traffic(&shared[1], "without the bus", 6);
    until_equal(&[&alone, &shared[0], &shared[1]]);
    server.start_again();
    eventually("the bus again", || {
        shared.iter().all(is_connected).then_some(())
    });
    traffic(&shared[0], "with the bus again", 6);
    until_equal(&[&alone, &shared[0], &shared[1]]);
}

#[test]
#[contract("DY21")]
fn routers_that_all_end_find_the_index_in_the_object_store() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let engines = [Program::engine(&[])];
    let settings = format!(
        "mode: nats, nats: {{url: \"{}\", snapshot_threshold: 3, retention: 10m}}",
        server.url()
    );
    let mut first = router(&engines, &settings);
    eventually("the bus", || is_connected(&first).then_some(()));
    traffic(&first, "before", 8);
    eventually("a snapshot", || {
        first
            .stderr()
            .contains("snapshot of the index stored")
            .then_some(())
    });
    traffic(&first, "behind the snapshot", 2);
    let before = digest(&first);
    first.kill();
    // One that does not reach the server within 3 s, as on a busy machine, starts without it.
    let second = eventually("a router that loads the snapshot", || {
        let started = router(&engines, &settings);
        let log = started.stderr();
        assert!(!log.contains("snapshot of the index is rejected"), "{log}");
        let is_loaded = "the routers' snapshot of the index is loaded";
        log.contains(is_loaded).then_some(started)
    });
    eventually("the same index", || {
        (digest(&second) == before).then_some(())
    });
}

#[test]
#[contract("DY22", "DY9")]
fn a_reset_is_refused_while_other_routers_run_unless_forced() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let engines = [Program::engine(&[])];
    let mut running = router(&engines, &over(&server));
    eventually("the bus", || is_connected(&running).then_some(()));
    traffic(&running, "before", 3);
    let resetting = |more: &str| format!("{}, reset_states: true{more}", over(&server));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config(&engines, &resetting(""))).unwrap();
    let refused = Program::finish(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "-c",
        file.path().to_str().unwrap(),
    ]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("stop them first"),
        "{}",
        refused.stderr
    );
    let forced = router(&engines, &resetting(", force_reset: true"));
    until_logged(&forced, "discarded");
    drop(forced);
    running.kill();
    until_nobody_is_present(&server);
    let first = router(&engines, &resetting(""));
    until_logged(&first, "discarded");
}

#[test]
#[contract("DY36")]
fn routers_of_another_namespace_or_component_share_nothing() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let engines = [Program::engine(&[])];
    let routers = [
        router(&engines, &over(&server)),
        router(&engines, &format!("{}, namespace: other", over(&server))),
        router(&engines, &format!("{}, component: other", over(&server))),
        router(
            &engines,
            &format!(
                "mode: nats, nats: {{url: \"{}\", stream: other}}",
                server.url()
            ),
        ),
    ];
    for router in &routers {
        eventually("the bus", || is_connected(router).then_some(()));
        eventually("its own reading", || {
            (sources(router) == ["zmq"]).then_some(())
        });
    }
    // All are present by now, each where the others do not look.
    for router in &routers {
        eventually("itself alone to be present", || {
            (metric(router, "warmroute_bus_replicas") == Some(1.0)).then_some(())
        });
    }
}

#[test]
fn a_server_that_requires_a_token_gets_it_from_the_file() {
    test_programs::require!(NatsServer);
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").display().to_string();
    let server = NatsServer::start(&["-js", "-sd", &store, "--auth", "let-me-in"]);
    let file = folder.path().join("token");
    std::fs::write(&file, "let-me-in\n").unwrap();
    let engines = [Program::engine(&[])];
    let without = router(&engines, &over(&server));
    let with = router(
        &engines,
        &format!(
            "mode: nats, nats: {{url: \"{}\", credentials_file: \"{}\"}}",
            server.url(),
            file.display()
        ),
    );
    eventually("the bus", || is_connected(&with).then_some(()));
    assert!(!is_connected(&without));
    traffic(&without, "all the same", 1);
}
