//! Workers that register at one router at run time, and drains, known to all routers over a NATS
//! server.

use std::{collections::BTreeMap, time::Duration};

use contract_id::contract;
use event_log::LogNames;
use nats_client::{Bucket, BucketConfig, JetStream, Storage};
use serde_json::{Value, json};

use crate::{
    harness::{Program, RawClient, RawReply, RouterQueries, chat, eventually},
    nats_server::NatsServer,
};

/// An engine without events, which nobody has to follow.
fn engine() -> Program {
    Program::engine(&["--no-kv-events"])
}

/// A router that shares workers over this server, before the worker `own` of its flags.
fn router(server: &NatsServer, own: &Program) -> Program {
    router_with(server, own, &[])
}

fn router_with(server: &NatsServer, own: &Program, flags: &[&str]) -> Program {
    router_before(server, &[format!("own={}", own.url())], flags)
}

fn router_before(server: &NatsServer, workers: &[String], flags: &[&str]) -> Program {
    let settings = format!(
        "replicas: {{mode: nats, nats: {{url: \"{}\"}}}}\n",
        server.url()
    );
    Program::serve_with(&settings, workers, flags)
}

fn call(router: &Program, method: &str, path: &str, body: &Value) -> RawReply {
    let mut client = RawClient::connect(&router.admin());
    client.send(method, path, &[], body.to_string().as_bytes());
    client.reply()
}

fn register(router: &Program, name: &str, engine: &Program) -> RawReply {
    let body = json!({"name": name, "url": engine.url()});
    call(router, "POST", "/admin/workers", &body)
}

/// Registers it again, or for the first time.
fn renew(router: &Program, name: &str, engine: &Program, lease: &str) -> u16 {
    let body = json!({"url": engine.url(), "lease_ttl": lease});
    call(router, "PUT", &format!("/admin/workers/{name}"), &body).status
}

fn drain(router: &Program, name: &str, verb: &str) {
    let path = format!("/admin/workers/{name}/{verb}");
    let reply = call(router, "POST", &path, &json!({}));
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// The workers of a router, with their states.
fn workers(router: &Program) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rows = router.workers();
    let pairs = rows
        .iter()
        .map(|row| (text(&row["name"]), text(&row["state"])));
    pairs.collect()
}

/// Waits until each router has these workers in these states, such as `own=ready w=ready`.
fn until(routers: &[&Program], expected: &str) {
    for (index, router) in routers.iter().enumerate() {
        eventually(&format!("router {index}: {expected}"), || {
            let rows = workers(router);
            let rows: Vec<String> = rows
                .iter()
                .map(|(name, it)| format!("{name}={it}"))
                .collect();
            (rows.join(" ") == expected).then_some(())
        });
    }
}

/// Waits until the bucket has the changes of this router.
fn until_written(router: &Program) {
    eventually("its changes to be in the bucket", || {
        let pending = router.metric("warmroute_shared_workers", "state=\"pending\"");
        (pending == 0.0).then_some(())
    });
}

/// Sends a request that only this worker may answer.
fn request(router: &Program, worker: &str) -> u16 {
    let pin = [
        ("x-warmroute-worker", worker),
        ("content-type", "application/json"),
    ];
    let body = chat("sim", "hello", 2).to_string();
    RawClient::post_with(
        &router.data(),
        "/v1/chat/completions",
        &pin,
        body.as_bytes(),
    )
    .status
}

fn is_connected(router: &Program) -> bool {
    router.metric("warmroute_bus_connected", "") == 1.0
}

#[test]
#[contract("DY38")]
fn a_worker_that_registers_at_one_router_serves_through_all_until_any_router_removes_it() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let (own, new) = (engine(), engine());
    let [a, b, c] = &std::array::from_fn(|_| router(&server, &own));
    let added = register(a, "w", &new);
    assert_eq!(added.status, 201, "{}", added.text());
    until(&[a, b, c], "own=ready w=ready");
    assert_eq!(request(b, "w"), 200);

    let again = register(c, "w", &own);
    assert_eq!(
        (again.status, again.error_code().as_str()),
        (409, "worker_exists")
    );
    let late = router(&server, &own);
    until(&[&late], "own=ready w=ready");

    let removed = call(c, "DELETE", "/admin/workers/w", &json!({}));
    assert_eq!(removed.status, 200, "{}", removed.text());
    until(&[a, b, c, &late], "own=ready");
    let repeated = call(a, "DELETE", "/admin/workers/w", &json!({}));
    assert_eq!(repeated.status, 200, "{}", repeated.text());
    let unknown = call(a, "DELETE", "/admin/workers/x", &json!({}));
    assert_eq!(unknown.status, 404, "{}", unknown.text());

    assert_eq!(register(&late, "w", &new).status, 201);
    until(&[a, b, c, &late], "own=ready w=ready");
}

#[test]
#[contract("DY38")]
fn a_lease_is_renewed_through_any_router_and_ends_also_if_its_first_router_is_killed() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let (own, new) = (engine(), engine());
    let mut a = router(&server, &own);
    let (b, c) = (router(&server, &own), router(&server, &own));
    assert_eq!(renew(&a, "w", &new, "3s"), 201);
    // A stall of this machine may have ended the lease before the renewal.
    assert!([200, 201].contains(&renew(&b, "w", &new, "10m")));
    until(&[&a, &b, &c], "own=ready w=ready");
    std::thread::sleep(Duration::from_secs(4));
    for router in [&a, &b, &c] {
        assert!(workers(router).contains_key("w"));
    }

    assert_eq!(renew(&a, "w", &new, "2s"), 200);
    until_written(&a);
    a.kill();
    until(&[&b, &c], "own=ready");
}

#[test]
#[contract("DY38")]
fn registrations_and_drains_outlive_all_routers_and_the_server() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start_with_store();
    let (own, new) = (engine(), engine());
    let routers: Vec<Program> = (0..2).map(|_| router(&server, &own)).collect();
    assert_eq!(register(&routers[0], "w", &new).status, 201);
    drain(&routers[1], "own", "drain");
    until(&[&routers[0], &routers[1]], "own=draining w=ready");
    for mut router in routers {
        router.kill();
    }
    server.kill();
    server.start_again();
    let again = router(&server, &own);
    until(&[&again], "own=draining w=ready");
    assert_eq!(request(&again, "w"), 200);
}

#[test]
#[contract("DY38", "F52")]
fn a_worker_registers_without_the_bus_and_is_told_to_the_others_when_it_is_back() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start_with_store();
    let (own, new, other) = (engine(), engine(), engine());
    let (a, b) = (router(&server, &own), router(&server, &own));
    assert_eq!(register(&a, "gone", &other).status, 201);
    assert_eq!(renew(&a, "leased", &other, "10m"), 201);
    for router in [&a, &b] {
        eventually("both workers", || {
            (workers(router).len() == 3).then_some(())
        });
    }
    assert_eq!(renew(&a, "leased", &other, "2s"), 200);
    until_written(&a);
    server.kill();
    for router in [&a, &b] {
        eventually("the loss of the bus", || {
            (!is_connected(router)).then_some(())
        });
    }
    let added = register(&a, "w", &new);
    assert_eq!(added.status, 201, "{}", added.text());
    eventually("it to serve", || (request(&a, "w") == 200).then_some(()));
    let removed = call(&b, "DELETE", "/admin/workers/gone", &json!({}));
    assert_eq!(removed.status, 200);
    drain(&a, "own", "drain");
    assert!(!workers(&b).contains_key("w"));
    assert!(workers(&a).contains_key("gone"));

    server.start_again();
    // The lease of the worker that renews no more ends now that the bus is there.
    until(&[&a, &b], "own=draining w=ready");
    assert_eq!(request(&b, "w"), 200);
}

#[test]
#[contract("DY38", "F98")]
fn a_drain_through_one_router_drains_at_all_and_any_resumes() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let (own, new) = (engine(), engine());
    let [a, b, c] = &std::array::from_fn(|_| router(&server, &own));
    assert_eq!(renew(a, "w", &new, "10m"), 201);
    until(&[a, b, c], "own=ready w=ready");
    drain(b, "w", "drain");
    until(&[a, b, c], "own=ready w=draining");
    assert_eq!(request(c, "w"), 503);
    assert_eq!(request(c, "own"), 200);
    // A renewal is no reason to serve again.
    assert_eq!(renew(c, "w", &new, "10m"), 200);
    drain(c, "own", "drain");
    until(&[a, b, c], "own=draining w=draining");
    let late = router(&server, &own);
    until(&[&late], "own=draining w=draining");
    drain(&late, "w", "resume");
    drain(a, "own", "resume");
    until(&[a, b, c, &late], "own=ready w=ready");
}

#[test]
#[contract("DY38")]
fn a_state_file_is_used_while_the_bus_is_away_and_brings_no_removed_worker_back() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start_with_store();
    let (own, new) = (engine(), engine());
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.json");
    let flags = ["--state-file", state.to_str().unwrap()];
    let mut a = router_with(&server, &own, &flags);
    let b = router(&server, &own);
    assert_eq!(register(&b, "w", &new).status, 201);
    until(&[&a, &b], "own=ready w=ready");
    a.kill();
    assert!(std::fs::read_to_string(&state).unwrap().contains("\"w\""));
    let removed = call(&b, "DELETE", "/admin/workers/w", &json!({}));
    assert_eq!(removed.status, 200);
    let mut a = router_with(&server, &own, &flags);
    until(&[&a, &b], "own=ready");

    assert_eq!(register(&a, "v", &new).status, 201);
    until(&[&a, &b], "own=ready v=ready");
    server.kill();
    a.kill();
    let a = router_with(&server, &own, &flags);
    until(&[&a], "own=ready v=ready");
    server.start_again();
    let late = router(&server, &own);
    until(&[&a, &b, &late], "own=ready v=ready");
}

/// Writes values into the routers' bucket, as any program with the server's password could.
fn write_values(server: &NatsServer, values: &[(&str, String)]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let connection = server.dialer().open().await.unwrap();
        let names = LogNames::new("warmroute-kv", "warmroute", "router").unwrap();
        let config = BucketConfig {
            name: names.bucket("workers"),
            max_age: None,
            storage: Storage::File,
        };
        let bucket = Bucket::open(&connection.client, &config).await.unwrap();
        for (key, value) in values {
            bucket.put(key, value.clone().into()).await.unwrap();
        }
    });
}

#[test]
#[contract("DY38")]
fn a_value_that_a_router_cannot_use_is_a_warning_and_a_count_and_changes_nothing() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let (own, new) = (engine(), engine());
    let one = router(&server, &own);
    eventually("the bus", || is_connected(&one).then_some(()));
    let value = |name: &str, entry: Value| {
        let form = json!({"form": 1, "name": name, "entry": entry, "writer": "x", "change": 1});
        form.to_string()
    };
    let values = [
        ("own", value("own", json!({"url": new.url()}))),
        (
            "metadata",
            value("metadata", json!({"url": "http://169.254.169.254"})),
        ),
        (
            "unknown-key",
            value("unknown-key", json!({"url": new.url(), "wieght": 2})),
        ),
        ("newer", json!({"form": 2}).to_string()),
        ("garbage", "\u{0}".to_owned()),
        ("other", value("metadata", json!({"url": new.url()}))),
        ("large", " ".repeat(100_000)),
        ("good", value("good", json!({"url": new.url()}))),
    ];
    write_values(&server, &values);
    until(&[&one], "good=ready own=ready");
    let refused = |reason: &str| {
        let label = format!("reason=\"{reason}\"");
        one.metric("warmroute_shared_workers_refused_total", &label)
    };
    // The good one may be applied before the others.
    for (reason, count) in [
        ("configured", 1.0),
        ("forbidden", 1.0),
        ("bad_entry", 1.0),
        ("unreadable", 4.0),
    ] {
        eventually(&format!("the count of {reason}"), || {
            (refused(reason) == count).then_some(())
        });
    }
    eventually("a warning for each registration", || {
        (one.stderr().matches("is not used here").count() == 3).then_some(())
    });
    let rejected = one.metric("warmroute_config_reloads_total", "result=\"rejected\"");
    assert_eq!(rejected, 0.0, "nobody changed this router's configuration");
    assert_eq!(request(&one, "own"), 200);
    assert_eq!(request(&one, "good"), 200);
    // A name that is taken in the fleet cannot be registered here, and can be freed.
    assert_eq!(register(&one, "metadata", &new).status, 409);
    let removed = call(&one, "DELETE", "/admin/workers/metadata", &json!({}));
    assert_eq!(removed.status, 200, "{}", removed.text());
    assert_eq!(register(&one, "metadata", &new).status, 201);

    let too_large = json!({"name": "big", "url": new.url(), "api_key": "k".repeat(70_000)});
    let reply = call(&one, "POST", "/admin/workers", &too_large);
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.text().contains("share at most"), "{}", reply.text());
}

#[test]
fn a_bucket_that_was_deleted_is_made_again_with_what_the_routers_know() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let (own, new) = (engine(), engine());
    let (a, b) = (router(&server, &own), router(&server, &own));
    assert_eq!(register(&a, "w", &new).status, 201);
    drain(&b, "own", "drain");
    until(&[&a, &b], "own=draining w=ready");
    for router in [&a, &b] {
        until_written(router);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let connection = server.dialer().open().await.unwrap();
        let jetstream = JetStream::new(connection.client.clone());
        let names = LogNames::new("warmroute-kv", "warmroute", "router").unwrap();
        let bucket = format!("KV_{}", names.bucket("workers"));
        jetstream.delete_stream(&bucket).await.unwrap();
    });
    let late = router(&server, &own);
    until(&[&a, &b, &late], "own=draining w=ready");
    drain(&late, "own", "resume");
    until(&[&a, &b, &late], "own=ready w=ready");
}

#[test]
fn the_drain_of_a_worker_that_is_gone_ends_with_resume_or_delete_at_any_router() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let (own, new) = (engine(), engine());
    for (method, path) in [
        ("POST", "/admin/workers/gone/resume"),
        ("DELETE", "/admin/workers/gone"),
    ] {
        let gone = format!("gone={}", new.url());
        let both = [format!("own={}", own.url()), gone];
        let mut with_it = router_before(&server, &both, &[]);
        drain(&with_it, "gone", "drain");
        until_written(&with_it);
        with_it.kill();
        let a = router(&server, &own);
        until(&[&a], "own=ready");
        let drained = || a.metric("warmroute_shared_workers", "state=\"drained\"");
        eventually("the drain", || (drained() == 1.0).then_some(()));
        let ended = call(&a, method, path, &json!({}));
        assert_eq!(ended.status, 200, "{method}: {}", ended.text());
        assert_eq!(ended.json()["state"], "removed");
        assert_eq!(drained(), 0.0);
        until_written(&a);
        let again = router_before(&server, &both, &[]);
        until(&[&again], "gone=ready own=ready");
        let unknown = call(&a, "POST", "/admin/workers/gone/resume", &json!({}));
        assert_eq!(unknown.status, 404, "{method}: {}", unknown.text());
    }
}

#[test]
fn the_removal_of_a_worker_of_the_file_leaves_the_registration_of_that_name_and_its_drain() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let (own, new) = (engine(), engine());
    let with_own = router(&server, &own);
    let other = router_before(&server, &[format!("other={}", own.url())], &[]);
    assert_eq!(register(&other, "own", &new).status, 201);
    drain(&with_own, "own", "drain");
    until(&[&with_own], "own=draining");
    until(&[&other], "other=ready own=draining");
    let removed = call(&with_own, "DELETE", "/admin/workers/own", &json!({}));
    assert_eq!(removed.status, 200, "{}", removed.text());
    until_written(&with_own);
    // One that starts reads the bucket.
    let late = router_before(&server, &[format!("other={}", own.url())], &[]);
    until(&[&other, &late], "other=ready own=draining");
    until(&[&with_own], "");
}
