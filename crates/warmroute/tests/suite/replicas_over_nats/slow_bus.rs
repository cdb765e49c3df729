//! A bus that stands still, is slow or has no space left: requests do not wait for it, no block is
//! credited without proof, and all routers agree again afterwards.

use std::time::Duration;

use contract_id::contract;

use super::{config, get, is_connected, proxy::BusProxy, sources, until_equal};
use crate::{
    harness::{Program, RawClient, RouterQueries, chat, eventually, words},
    nats_server::NatsServer,
};

/// Two routers that share events and load, beside one that shares nothing.
struct SharedFleet {
    engines: [Program; 2],
    alone: Program,
    routers: [Program; 2],
}

impl SharedFleet {
    /// Starts routers that reach the server at these URLs.
    fn start(urls: [String; 2]) -> Self {
        let engines = [Program::engine(&[]), Program::engine(&[])];
        let router = |replicas: &str| {
            let budget = "routing: {tokenize_budget: 60s}\n";
            let yaml = format!("{budget}{}", config(&engines, replicas));
            Program::serve_with(&yaml, &[], &[]).ready(2)
        };
        let alone = router("mode: none");
        let routers = urls.map(|url| {
            router(&format!(
                "mode: nats, load_sync: true, digest_interval: 200ms, peer_ttl: 2s, \
                 nats: {{url: \"{url}\", snapshot_threshold: 5}}"
            ))
        });
        let fleet = Self {
            engines,
            alone,
            routers,
        };
        fleet.until_shared();
        fleet
    }

    /// Waits until each engine has one reader among the routers on the bus.
    fn until_shared(&self) {
        eventually("one reader of each engine", || {
            let all: Vec<String> = self.routers.iter().flat_map(sources).collect();
            let direct = all.iter().filter(|source| *source == "zmq").count();
            (all.len() == 4 && direct == 2).then_some(())
        });
    }

    fn until_equal(&self) {
        until_equal(&[&self.alone, &self.routers[0], &self.routers[1]]);
    }

    /// Sends each prompt twice through both routers. A prediction above what the engine has cached
    /// is a false credit.
    fn traffic(&self, topic: &str) {
        for number in 0..4 {
            for router in self.routers.iter().chain(&self.routers) {
                let text = words(&format!("{topic}{number}x"), 100);
                let body = chat("sim", &text, 4).to_string();
                let reply =
                    RawClient::post(&router.data(), "/v1/chat/completions", body.as_bytes());
                assert_eq!(reply.status, 200, "{}", reply.text());
                let predicted = reply.header("x-warmroute-predicted-cached-tokens");
                let predicted: u64 = predicted.and_then(|text| text.parse().ok()).unwrap();
                let usage = &reply.json()["usage"];
                let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
                assert!(predicted <= cached.unwrap(), "{predicted} {usage}");
            }
        }
    }

    /// Waits until the routers share again, and shows it.
    fn until_healed(&self) {
        eventually("the bus to be in use", || {
            self.routers.iter().all(is_connected).then_some(())
        });
        self.until_shared();
        self.traffic("healed");
        self.until_equal();
        for router in &self.routers {
            eventually("two live replicas without load", || {
                let report = get(router, "/admin/replicas");
                let replicas = report["replicas"].as_array()?;
                let live = replicas.iter().filter(|it| it["state"] == "live").count();
                let idle = router
                    .workers()
                    .iter()
                    .all(|worker| worker["load"]["in_flight"] == 0);
                (live == 2 && idle).then_some(())
            });
        }
    }
}

#[test]
#[contract("F52", "F53")]
fn requests_and_events_go_on_while_the_server_stands_still() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let fleet = SharedFleet::start([server.url(), server.url()]);
    fleet.traffic("before");
    fleet.until_equal();
    // From here to its continuation the server answers nothing, and no connection ends: a request
    // that waited for the bus would never be answered.
    server.signal("STOP");
    fleet.traffic("meanwhile");
    eventually("the engines to be followed directly", || {
        let mut all = fleet.routers.iter().flat_map(sources);
        all.all(|source| source == "zmq").then_some(())
    });
    fleet.traffic("followed directly");
    fleet.until_equal();
    server.signal("CONT");
    fleet.until_healed();
}

#[test]
#[contract("F53")]
fn a_slow_bus_gives_no_false_credit_and_all_agree_again_when_it_is_fast() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let proxy = BusProxy::start(&server);
    let fleet = SharedFleet::start([server.url(), proxy.url()]);
    fleet.traffic("before");
    fleet.until_equal();
    for (delay, bytes_per_second) in [
        (Duration::from_millis(500), None),
        (Duration::ZERO, Some(4_000)),
    ] {
        proxy.slow_down(delay, bytes_per_second);
        fleet.traffic(&format!("with {delay:?}"));
        proxy.slow_down(Duration::ZERO, None);
        fleet.until_healed();
    }
}

#[test]
#[contract("F54")]
fn routers_on_a_server_with_a_full_disk_follow_the_engines_and_agree() {
    test_programs::require!(NatsServer);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nats.conf");
    let store = folder.path().join("store").display().to_string();
    let text = format!(
        "jetstream {{ store_dir: {store:?}, max_file_store: 8192, max_memory_store: 10000000 }}"
    );
    std::fs::write(&file, text).unwrap();
    let server = NatsServer::start(&["-c", file.to_str().unwrap()]);
    let fleet = SharedFleet::start([server.url(), server.url()]);
    let dropped = || {
        let outcome = "outcome=\"dropped\"";
        let count = |router: &Program| router.metric("warmroute_event_log_messages_total", outcome);
        fleet.routers.iter().map(count).sum::<f64>() > 0.0
    };
    for round in 0.. {
        fleet.traffic(&format!("round{round}"));
        if dropped() {
            break;
        }
        assert!(round < 20, "8 KB are full by now");
    }
    fleet.traffic("with a full disk");
    fleet.until_equal();
    assert_eq!(fleet.engines.len(), 2);
}
