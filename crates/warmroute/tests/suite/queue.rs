//! Requests that wait in the router: for a worker that can start, for room, for any worker.

use contract_id::contract;
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::harness::{
    Program, RawClient, RoutedFleet, RouterQueries as _, SimControls as _, chat, eventually,
    long_chat, streamed,
};

/// A tenth of a millisecond of real time for each prompt token.
const SLOW: &[&str] = &["--speed", "1", "--max-model-len", "65536"];

/// Words of a prompt that occupies a [`SLOW`] engine for six seconds. Tests end it as soon as others wait behind it.
const LONG: usize = 60_000;

fn send(routed: &RoutedFleet, id: &str, body: &Value) -> RawClient {
    let mut client = RawClient::connect(&routed.router.data());
    client.send(
        "POST",
        "/v1/chat/completions",
        &[("x-request-id", id)],
        body.to_string().as_bytes(),
    );
    client
}

fn metric(router: &Program, name: &str) -> f64 {
    router.metric(name, "")
}

fn waiting(router: &Program, count: f64) {
    eventually("this many requests to wait", || {
        (metric(router, "warmroute_queued") == count).then_some(())
    });
}

/// Returns when a receipt was written: when the first token of its request arrived.
fn time_of(receipt: &Value) -> OffsetDateTime {
    let at = receipt["at"].as_str().expect("a time");
    OffsetDateTime::parse(at, &Rfc3339).expect("a time of RFC 3339")
}

/// A prompt that shares no prefix with that of another id, so that no engine has it in its cache.
fn prompt_of_its_own(id: &str, words: usize) -> Value {
    streamed(chat("sim", &format!("{id} {}", "word ".repeat(words)), 1))
}

/// Sends a prompt of 8,000 words, then one of 2,000, and returns when both wait.
///
/// The shorter one occupies its engine for a fifth of a second, so the longer one waits for it too.
fn middle_and_short(routed: &RoutedFleet) -> (RawClient, RawClient) {
    let send = |id: &str, words| send(routed, id, &prompt_of_its_own(id, words));
    let middle = send("middle", 8_000);
    waiting(&routed.router, 1.0);
    let short = send("short", 2_000);
    waiting(&routed.router, 2.0);
    (middle, short)
}

#[test]
fn a_request_waits_while_the_only_worker_computes_a_long_prompt_and_the_shortest_goes_first() {
    let routed = RoutedFleet::with(&[SLOW], "", &[]);
    let long = send(&routed, "long", &streamed(long_chat("sim", LONG, 1)));
    eventually("the long prompt to be under way", || {
        (metric(&routed.router, "warmroute_leases") == 1.0).then_some(())
    });
    let (mut middle, mut short) = middle_and_short(&routed);
    drop(long);
    for client in [&mut short, &mut middle] {
        assert_eq!(client.reply().status, 200);
    }
    let first_token = |id: &str| {
        let receipt = eventually("the receipt", || {
            let receipt = routed.router.receipt(id);
            (!receipt["outcome"].is_null()).then_some(receipt)
        });
        assert_eq!(receipt["hold"]["reason"], "backlog");
        time_of(&receipt)
    };
    assert!(first_token("short") < first_token("middle"));
    assert_eq!(
        routed.router.receipt("long")["hold"],
        serde_json::json!({"held_ms": 0.0, "reason": null})
    );
    assert_eq!(
        metric(&routed.router, "warmroute_queue_wait_seconds_count"),
        2.0
    );
    routed.router.wait_until_idle();
}

#[test]
#[contract("F33")]
fn a_client_that_leaves_the_queue_frees_its_place_and_reaches_no_engine() {
    let routed = RoutedFleet::with(&[SLOW], "", &[]);
    let long = send(&routed, "long", &streamed(long_chat("sim", LONG, 1)));
    eventually("the long prompt to be under way", || {
        (metric(&routed.router, "warmroute_leases") == 1.0).then_some(())
    });
    let others: Vec<_> = (0..20)
        .map(|n| send(&routed, &format!("r{n}"), &chat("sim", "hello", 1)))
        .collect();
    waiting(&routed.router, 20.0);
    drop(others);
    waiting(&routed.router, 0.0);
    drop(long);
    routed.router.wait_until_idle();
    assert_eq!(routed.engines.len(), 1);
    assert_eq!(
        RawClient::post(
            &routed.router.data(),
            "/v1/chat/completions",
            chat("sim", "x", 1).to_string().as_bytes()
        )
        .status,
        200
    );
    assert_eq!(
        routed.engines[0].stats()["requests"],
        2,
        "the long request and the last one"
    );
}

#[test]
fn a_request_over_the_queue_limit_is_refused_with_retry_after() {
    let routed = RoutedFleet::with(&[SLOW], "queue: {max_entries: 1}\n", &[]);
    let _long = send(&routed, "long", &streamed(long_chat("sim", LONG, 1)));
    eventually("the long prompt to be under way", || {
        (metric(&routed.router, "warmroute_leases") == 1.0).then_some(())
    });
    let waits = send(&routed, "waits", &chat("sim", "hello", 1));
    waiting(&routed.router, 1.0);
    let refused = send(&routed, "refused", &chat("sim", "hello", 1)).reply();
    assert_eq!(
        (refused.status, refused.error_code()),
        (503, "queue_full".to_owned())
    );
    assert_eq!(refused.header("retry-after"), Some("1"));
    drop(waits);
    waiting(&routed.router, 0.0);
}

#[test]
fn without_the_queue_every_request_is_sent_at_once() {
    let routed = RoutedFleet::with(&[SLOW], "queue: {enabled: false}\n", &[]);
    let long = send(&routed, "long", &streamed(long_chat("sim", LONG, 1)));
    eventually("the long prompt to be under way", || {
        (metric(&routed.router, "warmroute_leases") == 1.0).then_some(())
    });
    let mut other = send(&routed, "other", &chat("sim", "hello", 1));
    assert_eq!(other.reply().status, 200);
    let receipt = routed.router.receipt("other");
    assert_eq!(receipt["hold"]["reason"], Value::Null, "{receipt}");
    assert_eq!(metric(&routed.router, "warmroute_queued"), 0.0);
    drop(long);
}

#[test]
#[contract("DY12")]
fn while_all_are_above_the_busy_threshold_requests_wait_for_room() {
    let small = ["--kv-blocks", "100", "--speed", "1", "--itl-ms", "50"];
    let routed = RoutedFleet::with(&[&small], "", &["--busy-threshold", "0.4"]);
    let usage = || {
        routed.worker("a")["engine"]["kv_usage_ratio"]
            .as_f64()
            .unwrap_or(0.0)
    };
    let full = send(&routed, "full", &streamed(long_chat("sim", 900, 600)));
    eventually("the engine to report its cache usage", || {
        (usage() > 0.4).then_some(())
    });
    let mut waits = send(&routed, "waits", &chat("sim", "hello", 1));
    waiting(&routed.router, 1.0);
    drop(full);
    assert_eq!(waits.reply().status, 200);
    assert_eq!(routed.router.receipt("waits")["hold"]["reason"], "busy");
}

#[test]
#[contract("DY12")]
fn a_request_is_refused_when_its_wait_budget_is_over() {
    let small = ["--kv-blocks", "100", "--speed", "1", "--itl-ms", "50"];
    let routed = RoutedFleet::with(
        &[&small],
        "queue: {wait: 1s}\n",
        &["--busy-threshold", "0.4"],
    );
    let usage = || {
        routed.worker("a")["engine"]["kv_usage_ratio"]
            .as_f64()
            .unwrap_or(0.0)
    };
    let _full = send(&routed, "full", &streamed(long_chat("sim", 900, 600)));
    eventually("the engine to report its cache usage", || {
        (usage() > 0.4).then_some(())
    });
    let refused = send(&routed, "waits", &chat("sim", "hello", 1)).reply();
    assert_eq!(
        (refused.status, refused.error_code()),
        (503, "queue_timeout".to_owned())
    );
    assert!(refused.header("retry-after").is_some());
    let held_ms = routed.router.receipt("waits")["hold"]["held_ms"]
        .as_f64()
        .expect("milliseconds");
    assert!(held_ms >= 1000.0, "{held_ms}");
}

#[test]
#[contract("V38")]
fn without_a_usable_worker_requests_wait_as_long_as_configured_and_not_by_default() {
    let mut engine = Program::engine(&["--speed", "20"]);
    let (port, worker) = (
        engine.data().rsplit(':').next().expect("a port").to_owned(),
        [engine.url()],
    );
    // Health checks detect the death, whether or not the worker's events were followed yet.
    let checks = "health_checks: {interval: 500ms, unhealthy_threshold: 1}\n";
    let serve = |flags: &[&str]| Program::serve_with(checks, &worker, flags).ready(1);
    let patient = serve(&["--engine-wait-timeout-secs", "60"]);
    let short = serve(&["--engine-wait-timeout-secs", "1"]);
    let at_once = serve(&[]);
    engine.kill();
    let body = chat("sim", "hello", 1).to_string();
    let post =
        |router: &Program| RawClient::post(&router.data(), "/v1/chat/completions", body.as_bytes());
    for router in [&patient, &short, &at_once] {
        eventually("the router to notice", || {
            let state = RawClient::get(&router.admin(), "/admin/workers").json();
            (state["workers"][0]["state"] == "down").then_some(())
        });
    }
    for router in [&short, &at_once] {
        let refused = post(router);
        assert_eq!(
            (refused.status, refused.error_code()),
            (503, "no_worker".to_owned())
        );
        assert!(refused.header("retry-after").is_some());
    }
    let mut waits = RawClient::connect(&patient.data());
    waits.send(
        "POST",
        "/v1/chat/completions",
        &[("x-request-id", "waits")],
        body.as_bytes(),
    );
    waiting(&patient, 1.0);
    let _again = Program::engine(&["--speed", "20", "--port", &port]);
    assert_eq!(waits.reply().status, 200);
    assert_eq!(patient.receipt("waits")["hold"]["reason"], "no_worker");
    assert_eq!(post(&patient).status, 200);
    patient.wait_until_idle();
}

#[test]
fn engines_that_schedule_by_priority_get_the_order_where_configured() {
    let engine = &[
        "--scheduling-policy",
        "priority",
        "--max-num-seqs",
        "1",
        // Half a second at least between two first tokens, which a busy machine does not turn round.
        "--prefill-tps",
        "400",
        "--speed",
        "1",
    ];
    // The router does not queue here, so all requests wait in the engine.
    let routed = RoutedFleet::with(
        &[engine],
        "queue: {enabled: false, engine_priority: true}\n",
        &[],
    );
    let send = |id: &str, body: &Value, priority: &str| {
        let mut client = RawClient::connect(&routed.router.data());
        let fields = [("x-request-id", id), ("x-warmroute-priority", priority)];
        client.send(
            "POST",
            "/v1/chat/completions",
            &fields,
            body.to_string().as_bytes(),
        );
        client
    };
    let engine = &routed.engines[0];
    let mut endless = streamed(chat("sim", "hello", 20_000));
    endless["ignore_eos"] = true.into();
    let long = send("long", &endless, "0");
    eventually("the long reply to be under way", || {
        (engine.stats()["running"] == 1).then_some(())
    });
    let mut clients = Vec::new();
    let requests = [
        ("second", 600, "0"),
        ("first", 200, "0"),
        ("last", 200, "-1"),
        ("before_all", 800, "1"),
    ];
    for (number, (id, words, priority)) in (1..).zip(requests) {
        clients.push((id, send(id, &prompt_of_its_own(id, words), priority)));
        eventually("it to wait in the engine", || {
            (engine.stats()["waiting"] == number).then_some(())
        });
    }
    drop(long);
    let mut first_tokens: Vec<_> = clients
        .iter_mut()
        .map(|(id, client)| {
            let reply = client.reply();
            assert_eq!(
                (reply.status, reply.header("x-warmroute-rewrites")),
                (200, Some("priority"))
            );
            let receipt = eventually("the receipt", || {
                let receipt = routed.router.receipt(id);
                (!receipt["outcome"].is_null()).then_some(receipt)
            });
            (time_of(&receipt), *id)
        })
        .collect();
    first_tokens.sort_unstable();
    assert_eq!(
        first_tokens.iter().map(|(_, id)| *id).collect::<Vec<_>>(),
        ["before_all", "first", "second", "last"]
    );
    routed.router.wait_until_idle();
}

#[test]
fn a_clients_own_priority_and_an_engine_without_priorities_are_left_unchanged() {
    let routed = RoutedFleet::with(
        &[&["--scheduling-policy", "priority"]],
        "queue: {engine_priority: true}\n",
        &[],
    );
    let mut body = chat("sim", "hello", 1);
    body["priority"] = 5.into();
    let reply = RawClient::post(
        &routed.router.data(),
        "/v1/chat/completions",
        body.to_string().as_bytes(),
    );
    assert_eq!(
        (reply.status, reply.header("x-warmroute-rewrites")),
        (200, None)
    );
    // By default nothing is added: an engine without the flag would refuse it.
    let routed = RoutedFleet::with(&[&[]], "", &[]);
    let plain = chat("sim", "hello", 1).to_string();
    let reply = RawClient::post(
        &routed.router.data(),
        "/v1/chat/completions",
        plain.as_bytes(),
    );
    assert_eq!(
        (reply.status, reply.header("x-warmroute-rewrites")),
        (200, None)
    );
}

#[test]
#[contract("F79")]
fn an_idle_model_answers_at_once_while_400_requests_wait_for_another_model() {
    let routed = RoutedFleet::with(&[SLOW, &["--speed", "1", "--model", "other"]], "", &[]);
    let _long = send(&routed, "long", &streamed(long_chat("sim", LONG, 1)));
    eventually("the long prompt to be under way", || {
        (metric(&routed.router, "warmroute_leases") == 1.0).then_some(())
    });
    // No two prompts share a prefix: each takes its full time.
    let body = |n| chat("sim", &format!("{n} {}", "word ".repeat(2_000)), 1);
    let others: Vec<_> = (0..450)
        .map(|n| send(&routed, &format!("r{n}"), &body(n)))
        .collect();
    let queued = || metric(&routed.router, "warmroute_queued");
    eventually("400 requests to wait", || (queued() >= 400.0).then_some(()));
    for n in 0..10 {
        let id = format!("idle{n}");
        assert_eq!(
            send(&routed, &id, &streamed(chat("other", "hello", 1)))
                .reply()
                .status,
            200
        );
        assert_eq!(
            routed.router.receipt(&id)["hold"],
            serde_json::json!({"held_ms": 0.0, "reason": null})
        );
    }
    assert!(queued() >= 200.0, "the others still wait: {}", queued());
    drop(others);
    waiting(&routed.router, 0.0);
}

#[test]
fn a_worker_that_comes_back_takes_waiting_requests_in_their_order() {
    let routed = RoutedFleet::with(&[SLOW, SLOW], "", &[]);
    let change = |path: &str| {
        let reply = RawClient::post(
            &routed.router.admin(),
            &format!("/admin/workers/b/{path}"),
            b"",
        );
        assert!(reply.status < 300, "{}", reply.text());
    };
    change("drain");
    eventually("b to get no request", || {
        (routed.worker("b")["state"] == "draining").then_some(())
    });
    let _long = send(&routed, "long", &streamed(long_chat("sim", LONG, 1)));
    eventually("the long prompt to be under way", || {
        (metric(&routed.router, "warmroute_leases") == 1.0).then_some(())
    });
    let (mut middle, mut short) = middle_and_short(&routed);
    change("resume");
    for client in [&mut short, &mut middle] {
        assert_eq!(client.reply().status, 200);
    }
    let receipt = |id: &str| {
        eventually("the receipt", || {
            let receipt = routed.router.receipt(id);
            (!receipt["outcome"].is_null()).then_some(receipt)
        })
    };
    let (short, middle) = (receipt("short"), receipt("middle"));
    assert_eq!(
        (&short["hold"]["reason"], &middle["hold"]["reason"]),
        (&"backlog".into(), &"backlog".into())
    );
    assert_eq!(
        (&short["winner"]["worker"], &middle["winner"]["worker"]),
        (&"b".into(), &"b".into()),
        "{short}"
    );
    assert!(time_of(&short) < time_of(&middle));
}
