//! Faults of the bus.

use contract_id::contract;
use serde_json::json;

use super::group::{Link, RouterGroup, engines, report, states};
use crate::{
    harness::{Program, RawClient, RouterQueries, eventually},
    nats_server::NatsServer,
};

#[test]
#[contract("F52", "F53")]
fn requests_go_on_without_the_bus_and_load_agrees_again_after_its_return() {
    let (_engines, workers) = engines(2, &[]);
    let mut group = RouterGroup::start(Link::nats(), 2, workers);
    let before = group.long_stream(0, "before");
    eventually("the stream to count in both", || {
        (group.in_flight(1, "a") + group.in_flight(1, "b") == 1).then_some(())
    });
    let Link::Nats(server) = &mut group.link else {
        unreachable!("the link is a bus");
    };
    server.kill();
    eventually("the loss of the bus to be seen", || {
        (group.router(1).metric("warmroute_bus_connected", "") == 0.0).then_some(())
    });
    for at in [0, 1] {
        assert_eq!(group.chat(at, "meanwhile", &[]).status, 200);
    }
    // Nobody says that the stream has ended: it goes with the time to live.
    drop(before);
    eventually("the other router to be lost", || {
        (states(group.router(1)) == ["live", "lost"]).then_some(())
    });
    assert_eq!(group.in_flight(1, "a") + group.in_flight(1, "b"), 0);
    let during = group.long_stream(0, "during");
    let Link::Nats(server) = &mut group.link else {
        unreachable!("the link is a bus");
    };
    server.start_again();
    group.until_acquainted();
    eventually("the load to agree again", || {
        (group.in_flight(1, "a") + group.in_flight(1, "b") == 1).then_some(())
    });
    drop(during);
    eventually("the load to end", || {
        (group.in_flight(1, "a") + group.in_flight(1, "b") == 0).then_some(())
    });
}

/// The reference's command lines for one, two and three replicas, on free ports.
#[test]
#[contract("DY8", "DY20", "DY23")]
fn the_flags_of_the_reference_start_replicas_that_share_load_over_the_server_of_the_environment() {
    let (_engines, workers) = engines(1, &[]);
    let server = NatsServer::start_with_store();
    let url = server.url();
    let flags = ["--router-mode", "kv", "--router-replica-sync"];
    let start = || {
        let router = Program::serve_with_env(&workers, &flags, &[("NATS_SERVER", &url)]);
        router.ready(1)
    };
    let routers = [start(), start(), start()];
    for router in &routers {
        eventually("three replicas", || {
            (states(router) == ["live", "live", "live"]).then_some(())
        });
        let report = report(router);
        assert_eq!(
            (&report["mode"], &report["load_sync"]),
            (&"nats".into(), &true.into())
        );
    }
    let body = json!({
        "model": "sim", "max_tokens": 20_000, "ignore_eos": true, "stream": true,
        "messages": [{"role": "user", "content": "hello"}],
    });
    let mut stream = RawClient::chat(&routers[0].data(), &body);
    let _begun = stream.read_until("data: ");
    for router in &routers {
        eventually("the stream to count in every router", || {
            (router.workers()[0]["load"]["in_flight"] == 1).then_some(())
        });
    }
}

#[test]
#[contract("F52")]
fn a_router_starts_and_serves_without_its_bus() {
    let (_engines, workers) = engines(1, &[]);
    let mut link = Link::nats();
    let Link::Nats(server) = &mut link else {
        unreachable!("the link is a bus");
    };
    server.kill();
    let mut group = RouterGroup::apart(link, 2, workers);
    for at in [0, 1] {
        assert_eq!(group.chat(at, "hello", &[]).status, 200);
        assert_eq!(states(group.router(at)), ["live"], "itself alone");
    }
    let Link::Nats(server) = &mut group.link else {
        unreachable!("the link is a bus");
    };
    server.start_again();
    group.until_acquainted();
}

/// A server that does not let its user publish what replicas say to each other.
fn silencing_server() -> (NatsServer, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nats.conf");
    let store = folder.path().join("store").display().to_string();
    let text = format!(
        "jetstream {{ store_dir: {store:?} }}\n\
         authorization {{ users: [{{ user: router, password: secret, permissions: {{\n\
           publish: {{ deny: \"warmroute.router.>\" }}, subscribe: \">\" }} }}] }}\n\
         no_auth_user: router\n"
    );
    std::fs::write(&file, text).unwrap();
    let server = NatsServer::start(&["-c", file.to_str().unwrap()]);
    (server, folder)
}

#[test]
fn a_router_that_may_not_publish_tries_no_more_often_than_others_publish() {
    test_programs::require!(NatsServer);
    let (server, _folder) = silencing_server();
    let (_engines, workers) = engines(1, &[]);
    let group = RouterGroup::apart(Link::Nats(server), 1, workers);
    let sent = || {
        let labels = "direction=\"sent\"";
        (group.router(0)).metric("warmroute_replica_messages_total", labels)
    };
    eventually("some presences", || (sent() >= 10.0).then_some(()));
    let count = sent();
    // One presence in 200 ms, and those at the start.
    let own = report(group.router(0))["replicas"][0].clone();
    let most = 10.0 + own["since_s"].as_f64().unwrap() * 6.0;
    assert!(count <= most, "{count} messages, expected at most {most}");
}
