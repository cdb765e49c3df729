//! Who the routers are to each other.

use contract_id::contract;
use serde_json::{Value, json};

use super::group::{Link, RouterGroup, engines, report, states};
use crate::harness::{Program, RawClient, RouterQueries, assert_shape, eventually};

#[test]
fn the_report_names_every_replica() {
    for link in Link::all() {
        let mode = link.mode();
        let (_engines, workers) = engines(1, &[]);
        let group = RouterGroup::start(link, 2, workers);
        let report = report(group.router(0));
        assert_eq!(report["mode"], mode);
        assert_eq!(report["self"], report["replicas"][0]["id"]);
        let replica = json!({
            "id": "hex", "address": "string", "version": "string", "since_s": "number", "last_seen_s": "number",
            "state": "string", "reason": "null", "load_digest": "hex", "open_requests": "int",
            "queued_requests": "int", "counted_requests": "int", "repairs": "int", "index_digest": "hex", "lag_messages": "int",
            "owns_streams": ["string"],
        });
        assert_shape(
            &report,
            &json!({
                "self": "hex", "mode": "string", "namespace": "string", "component": "string", "load_sync": "bool",
                "replicas": [replica], "snapshot": {"at": "null|time", "messages": "int", "bytes": "int"},
            }),
        );
        let id = |at: usize| report["replicas"][at]["id"].as_str().unwrap().to_owned();
        assert_ne!(id(0), id(1));
        let address = format!("http://{}", group.router(1).admin());
        assert_eq!(report["replicas"][1]["address"], address);
    }
}

#[test]
#[contract("DY8")]
fn without_settings_a_router_is_alone() {
    let (_engines, workers) = engines(1, &[]);
    let router = Program::serve(&workers, &[]).ready(1);
    let report = report(&router);
    assert_eq!(
        (&report["mode"], &report["load_sync"]),
        (&json!("none"), &json!(false))
    );
    assert_eq!(report["replicas"], json!([]));
    for path in [
        "/admin/replicas/feed",
        "/admin/replicas/state?after=0",
        "/admin/replicas/snapshot",
    ] {
        let reply = RawClient::get(&router.admin(), path);
        assert_eq!((reply.status, &*reply.error_code()), (404, "unknown_route"));
    }
}

#[test]
#[contract("DY36")]
fn routers_of_another_namespace_share_nothing() {
    let names = ["namespace: other", "component: other"];
    for (link, other) in Link::all().into_iter().zip(names) {
        let is_bus = link.mode() == "nats";
        let (_engines, workers) = engines(1, &[]);
        let mut group = RouterGroup::start(link, 2, workers);
        group.kill(1);
        group.rename(other);
        group.start_router(1);
        let stream = group.long_stream(0, "one");
        group.until_in_flight(0, "a", 1);
        if is_bus {
            // It sees no message of the first one.
            assert_eq!(states(group.router(1)), ["live"]);
        } else {
            eventually("the peer to be refused", || {
                let report = report(group.router(1));
                let refused = |replica: &&Value| replica["state"] == "refused";
                let peer = report["replicas"].as_array()?.iter().find(refused)?.clone();
                (peer["reason"] == "settings").then_some(())
            });
        }
        assert_eq!(group.in_flight(1, "a"), 0);
        drop(stream);
    }
}

#[test]
fn digests_come_at_the_configured_interval() {
    let (_engines, workers) = engines(1, &[]);
    let received = |keys: &str| {
        let group = RouterGroup::with(Link::Peers, 2, workers.clone(), keys);
        let count = || {
            group
                .router(0)
                .metric("warmroute_replica_messages_total", "direction=\"received\"")
        };
        let before = count();
        std::thread::sleep(std::time::Duration::from_secs(3));
        count() - before
    };
    // Ten times as many: a busy machine delays both.
    let (often, seldom) = (
        received(", digest_interval: 100ms"),
        received(", digest_interval: 1s"),
    );
    assert!(often > 2.0 * seldom, "{often} and {seldom}");
}

#[test]
fn a_router_that_ends_says_so() {
    for link in Link::all() {
        let (_engines, workers) = engines(1, &[]);
        let mut group = RouterGroup::with(link, 2, workers, ", load_sync: true, peer_ttl: 60s");
        let ended = group.routers[1].take().expect("it runs");
        ended.signal("TERM");
        assert_eq!(ended.wait().code, Some(0));
        // Long before its time to live.
        eventually("the other one to see it go", || {
            (states(group.router(0)) == ["live", "lost"]).then_some(())
        });
        assert_eq!(group.router(0).metric("warmroute_replica_peers", ""), 0.0);
    }
}

#[test]
#[contract("F93")]
fn routers_divide_the_limits_of_tenants_by_their_number() {
    for link in Link::all() {
        let mode = link.mode();
        let (_engines, workers) = engines(1, &[]);
        let mut group = RouterGroup::start(link, 3, workers);
        let shared_by = |router: &Program, count: f64| {
            eventually("the routers to be counted", || {
                let counted = router.metric("warmroute_tenant_limit_routers", "");
                (counted == count).then_some(())
            });
        };
        group
            .routers
            .iter()
            .flatten()
            .for_each(|router| shared_by(router, 3.0));
        // One that ends gives its share up, one that is killed may run on out of reach.
        let ended = group.routers[2].take().expect("it runs");
        ended.signal("TERM");
        ended.wait();
        shared_by(group.router(0), 2.0);
        group.kill(1);
        eventually("the killed router to be lost", || {
            let lost = states(group.router(0))
                .iter()
                .filter(|state| *state == "lost")
                .count();
            (lost == 2).then_some(())
        });
        let counted = group.router(0).metric("warmroute_tenant_limit_routers", "");
        assert_eq!(counted, 2.0, "{mode}");
    }
}
