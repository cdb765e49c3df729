//! Health checks of workers as configured: what is sent, how often, and what follows.

use std::time::Duration;

use contract_id::contract;
use serde_json::json;

use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, Stopwatch, chat,
    eventually, json_reply,
};

/// A router before these engines, named `a`, `b`, ..., each with more keys of its entry.
fn router(engines: &[(&ScriptedEngine, &str)], config: &str) -> Program {
    let entry = |(name, (engine, keys)): (char, &(&ScriptedEngine, &str))| {
        format!(
            "  - {{name: {name}, type: generic, url: \"{}\", {keys}}}\n",
            engine.url()
        )
    };
    let workers: String = ('a'..).zip(engines).map(entry).collect();
    let config = format!("kv_events: {{enabled: false}}\n{config}workers:\n{workers}");
    Program::serve_with(&config, &[], &[])
}

fn engine() -> ScriptedEngine {
    ScriptedEngine::start(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        "{\"choices\": []}",
    )))
}

fn state(router: &Program, name: &str) -> String {
    let workers = router.workers();
    let worker = workers.iter().find(|worker| worker["name"] == name);
    worker.expect("a worker")["state"]
        .as_str()
        .expect("a state")
        .to_owned()
}

fn until(router: &Program, name: &str, wanted: &str) {
    eventually(&format!("{name} to be {wanted}"), || {
        (state(router, name) == wanted).then_some(())
    });
}

/// The worker of each of six requests.
fn served_by(router: &Program) -> Vec<String> {
    let one = |_| {
        let reply = RawClient::chat(&router.data(), &chat("m", "hi", 1)).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply
            .header("x-warmroute-worker")
            .expect("the worker")
            .to_owned()
    };
    (0..6).map(one).collect()
}

#[test]
#[contract("CH8")]
fn the_method_of_a_check_is_the_one_that_is_sent() {
    for method in ["GET", "HEAD"] {
        let engine = engine();
        engine.answer("/up", "200 OK", "");
        let keys = format!("health_check: {{endpoint: /up, method: {method}}}");
        let router = router(&[(&engine, &keys)], "").ready(1);
        let check = engine.next_request();
        assert_eq!(check.line(), format!("{method} /up HTTP/1.1"));
        assert_eq!(check.body, b"");
        assert_eq!(served_by(&router), ["a"; 6]);
    }
}

#[test]
#[contract("CH8")]
fn a_post_carries_its_body_and_its_own_time_limit_may_be_the_longer_one() {
    let slow = || {
        ScriptedEngine::start(ScriptedReply::Late(
            Duration::from_millis(1500),
            json_reply("200 OK", "", "{}"),
        ))
    };
    let (patient, impatient) = (slow(), slow());
    let check = "endpoint: /up, fallback_endpoints: [], method: POST, body: {check: true}";
    let router = router(
        &[
            (&patient, &format!("health_check: {{{check}, timeout: 1m}}")),
            (&impatient, &format!("health_check: {{{check}}}")),
        ],
        "health_checks: {timeout: 500ms}\n",
    );
    until(&router, "a", "ready");
    let seen = patient.next_request();
    assert_eq!(seen.line(), "POST /up HTTP/1.1");
    let body: serde_json::Value = serde_json::from_slice(&seen.body).expect("the body is JSON");
    assert_eq!(body, json!({"check": true}));
    assert_eq!(state(&router, "b"), "down", "the general limit is 500 ms");
}

#[test]
#[contract("CH8")]
fn a_body_that_would_not_be_sent_is_refused() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("w.yaml").display().to_string();
    let check = |keys: &str| {
        let text =
            format!("workers: [{{url: \"http://127.0.0.1:1\", health_check: {{{keys}}}}}]\n");
        std::fs::write(&path, text).expect("it can be written");
        Program::finish(&["config", "check", &path])
    };
    for keys in ["body: {a: 1}", "body: {a: 1}, method: HEAD"] {
        let refused = check(keys);
        assert_eq!(refused.code, Some(78), "{}", refused.stderr);
        assert!(
            refused.stderr.contains("workers[0].health_check.body")
                && refused.stderr.contains("method: POST"),
            "{}",
            refused.stderr
        );
    }
    assert_eq!(check("body: {a: 1}, method: POST").code, Some(0));
}

#[test]
#[contract("CH1", "CH2", "CH3")]
fn a_worker_that_fails_its_checks_gets_no_traffic_until_it_passes_again() {
    let (sick, well) = (engine(), engine());
    let config = "health_checks: {interval: 100ms, unhealthy_threshold: 2, healthy_threshold: 3, endpoint: /up}\n\
                  routing: {policy: round_robin}\n";
    sick.answer("/up", "200 OK", "");
    well.answer("/up", "200 OK", "");
    let router = router(&[(&sick, ""), (&well, "")], config).ready(2);
    assert!(served_by(&router).contains(&"a".to_owned()));
    sick.answer("/up", "500 Internal Server Error", "");
    until(&router, "a", "down");
    assert_eq!(served_by(&router), ["b"; 6]);
    sick.answer("/up", "200 OK", "");
    until(&router, "a", "ready");
    assert!(served_by(&router).contains(&"a".to_owned()));
}

#[test]
#[contract("CH1")]
fn without_periodic_checks_a_ready_worker_stays_ready() {
    let (unchecked, checked) = (engine(), engine());
    let both = [("false", &unchecked), ("true", &checked)];
    let routers = both.map(|(enabled, engine)| {
        engine.answer("/up", "200 OK", "");
        let config = format!(
            "health_checks: {{enabled: {enabled}, interval: 50ms, unhealthy_threshold: 1, endpoint: /up}}\n\
             model_aggregation: {{background_refresh: {{enabled: false}}}}\n"
        );
        let router = router(&[(engine, "")], &config).ready(1);
        engine.answer("/up", "500 Internal Server Error", "");
        router
    });
    until(&routers[1], "a", "down");
    // The other one has had the same time, and more.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(state(&routers[0], "a"), "ready");
}

#[test]
#[contract("CH1", "CH3", "CH4")]
fn a_worker_that_warms_up_for_too_long_is_down_and_checked_at_the_normal_interval() {
    let engine = engine();
    engine.answer("/up", "503 Service Unavailable", "");
    let config = "health_checks: {interval: 1s, warmup_check_interval: 50ms, max_warmup_duration: 4s, endpoint: /up}\n";
    let router = router(&[(&engine, "")], config);
    until(&router, "a", "warming_up");
    until(&router, "a", "down");
    engine.forget();
    let checks: Vec<_> = (0..4).map(|_| engine.next_request().arrived).collect();
    // The first pause began before it was down. A check may arrive late, so that the next one comes
    // sooner after it; attempts to connect would begin at 250 ms.
    for pair in checks[1..].windows(2) {
        let pause = pair[0].until(pair[1]);
        assert!(pause >= Duration::from_millis(500), "{pause:?}");
    }
    engine.answer("/up", "200 OK", "");
    until(&router, "a", "ready");
}

#[test]
#[contract("CH8")]
fn the_statuses_of_a_healthy_and_of_a_loading_worker_are_the_configured_ones() {
    for (status, keys, expected) in [
        ("204 No Content", "", "down"),
        ("204 No Content", ", accept_status: [200, 204]", "ready"),
        ("425 Too Early", "", "down"),
        ("425 Too Early", ", warmup_status: [425]", "warming_up"),
    ] {
        let engine = engine();
        engine.answer("/up", status, "");
        let keys = format!("health_check: {{endpoint: /up{keys}}}");
        let router = router(&[(&engine, &keys)], "");
        until(&router, "a", expected);
    }
}

#[test]
#[contract("CH7", "CH8")]
fn after_a_404_the_configured_paths_are_tried_in_their_order() {
    let engine = engine();
    engine.answer("/first", "404 Not Found", "");
    engine.answer("/second", "404 Not Found", "");
    engine.answer("/third", "200 OK", "");
    let keys = "health_check: {endpoint: /first, fallback_endpoints: [/second, /third]}";
    let _router = router(&[(&engine, keys)], "").ready(1);
    let paths: Vec<_> = (0..3).map(|_| engine.next_request().line()).collect();
    assert_eq!(
        paths,
        ["/first", "/second", "/third"].map(|path| format!("GET {path} HTTP/1.1"))
    );
}

#[test]
#[contract("CH3", "CH4", "CH5")]
fn by_default_a_worker_that_loads_is_checked_every_second_and_not_every_thirty() {
    let engine = engine();
    engine.answer("/up", "503 Service Unavailable", "");
    let router = router(&[(&engine, "health_check: {endpoint: /up}")], "");
    until(&router, "a", "warming_up");
    let checks: Vec<_> = (0..4).map(|_| engine.next_request().arrived).collect();
    // A bound for a machine that stands still for a while.
    let most = Duration::from_secs(20);
    for pair in checks.windows(2) {
        let pause = pair[0].until(pair[1]);
        assert!(pause < most, "{pause:?}");
    }
    engine.answer("/up", "200 OK", "");
    let watch = Stopwatch::start();
    until(&router, "a", "ready");
    assert!(watch.elapsed() < most, "{:?}", watch.elapsed());
}

#[test]
#[contract("CH1", "CH3")]
fn a_worker_that_loads_waits_for_its_own_interval() {
    let engine = engine();
    engine.answer("/up", "503 Service Unavailable", "");
    let config = "health_checks: {interval: 100ms, warmup_check_interval: 10m}\n\
                  model_aggregation: {background_refresh: {enabled: false}}\n";
    let router = router(&[(&engine, "health_check: {endpoint: /up}")], config);
    until(&router, "a", "warming_up");
    engine.answer("/up", "200 OK", "");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(state(&router, "a"), "warming_up");
}
