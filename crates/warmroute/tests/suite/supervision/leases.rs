//! State with a lease survives a pause of the router.

use std::{thread::sleep, time::Duration};

use contract_id::contract;
use serde_json::json;

use crate::harness::{Program, RawClient, RawReply, RouterQueries as _, chat, eventually};

/// Longer than a lease of three seconds.
const PAUSE: Duration = Duration::from_secs(6);
/// Two checks for expired leases, and less than the rest of a lease.
const LOOKS: Duration = Duration::from_millis(1500);

fn call(address: &str, method: &str, path: &str, body: &str) -> RawReply {
    let mut client = RawClient::connect(address);
    client.send(method, path, &[], body.as_bytes());
    client.reply()
}

fn names(router: &Program) -> Vec<String> {
    router
        .workers()
        .iter()
        .map(|worker| worker["name"].as_str().unwrap().to_owned())
        .collect()
}

fn pause(router: &Program) {
    router.signal("STOP");
    sleep(PAUSE);
    router.signal("CONT");
    sleep(LOOKS);
}

#[test]
#[contract("F65")]
fn a_worker_whose_lease_expired_while_the_router_was_paused_may_renew_it() {
    let engines = [
        Program::engine(&["--no-kv-events"]),
        Program::engine(&["--no-kv-events"]),
    ];
    let router = Program::serve(&[format!("a={}", engines[0].url())], &[]).ready(1);
    let body = json!({"url": engines[1].url(), "lease_ttl": "3s"}).to_string();
    let renew = || call(&router.admin(), "PUT", "/admin/workers/b", &body).status;
    assert_eq!(renew(), 201);

    pause(&router);

    assert_eq!(
        renew(),
        200,
        "it is renewed, not created again; {}",
        router.stderr()
    );
    let stalled = router.metric("warmroute_scheduler_stall_seconds_total", "");
    assert!(stalled >= 5.0, "{stalled}");
    eventually("the stall to be logged", || {
        router.stderr().contains("stood still").then_some(())
    });
    eventually("the lease to end without a renewal", || {
        (names(&router) == ["a"]).then_some(())
    });
}

#[test]
#[contract("F65")]
fn a_reservation_survives_a_pause_longer_than_its_ttl() {
    let engine = Program::engine(&["--no-kv-events"]);
    let router =
        Program::serve_with("routing: {reservation_ttl: 3s}", &[engine.url()], &[]).ready(1);
    let mut body = chat("sim", "hi", 1);
    body["request_id"] = json!("mine");
    let reserved = call(&router.data(), "POST", "/v1/route", &body.to_string());
    assert_eq!(reserved.status, 200, "{}", reserved.text());

    pause(&router);

    let computed = call(
        &router.data(),
        "POST",
        "/v1/route/mine/prefill_complete",
        "",
    );
    assert_eq!(computed.status, 200, "{}", computed.text());
    eventually("it to end without a call", || {
        (router.metric("warmroute_leases", "") == 0.0).then_some(())
    });
    let late = call(&router.data(), "DELETE", "/v1/route/mine", "");
    assert_eq!(
        (late.status, late.error_code().as_str()),
        (404, "reservation_not_found")
    );
}

#[test]
#[contract("F65")]
fn timeouts_caused_by_a_pause_do_not_count_against_a_worker() {
    let engine = Program::engine(&["--no-kv-events", "--overhead-ms", "2000"]);
    let yaml = "request: {timeout: 4s}\nretry: {max_attempts: 1}\n";
    let router = Program::serve_with(yaml, &[engine.url()], &[]).ready(1);
    let mut clients: Vec<_> = (0..12)
        .map(|_| RawClient::chat(&router.data(), &chat("sim", "hi", 1)))
        .collect();
    eventually("all requests to be in flight", || {
        (router.metric("warmroute_leases", "") == 12.0).then_some(())
    });
    pause(&router);
    // The requests may time out once.
    for client in &mut clients {
        let reply = client.reply();
        assert!(
            matches!(reply.status, 200 | 504),
            "{} {}",
            reply.status,
            reply.text()
        );
    }
    assert_eq!(router.workers()[0]["state"], "ready", "{}", router.stderr());
    assert!(!router.stderr().contains("ejected"), "{}", router.stderr());
}
