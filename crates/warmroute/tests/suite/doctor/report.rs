//! The report's shape and order, as JSON and as text.

use serde_json::{Value, json};

use super::look::{DoctorRun, engine, look_at};
use crate::harness::{Program, RawClient, RouterQueries, SimControls, assert_shape, eventually};

/// The checks of a worker, in the documented order.
const WORKER: [&str; 27] = [
    "reachable",
    "model_listed",
    "engine_version",
    "model_agrees",
    "block_size",
    "prefix_caching",
    "tokenizer",
    "chat_template",
    "special_tokens",
    "usage_details",
    "events_enabled",
    "events_endpoint",
    "events_arriving",
    "events_age",
    "replay",
    "sequence",
    "dp_ranks",
    "dp_offset",
    "identity_unique",
    "hash_alias",
    "lora",
    "salt_honoured",
    "medium_known",
    "hybrid_groups",
    "role_pairing",
    "health_endpoint",
    "clock",
];

/// The checks of the router, in the documented order.
const ROUTER: [&str; 11] = [
    "config",
    "listener_exposed",
    "admin_exposed",
    "key_in_arguments",
    "tenants_salted",
    "redis",
    "nats",
    "replicas",
    "s3",
    "limits_fd",
    "timers",
];

#[test]
fn a_healthy_engine_passes_every_check_that_applies_in_the_documented_shape_and_order() {
    let engine = engine(&[]);
    let seen = look_at(&engine, &[]).green();
    let check = json!({
        "id": "string", "status": "string", "found": "null|string", "expected": "null|string", "message": "string",
        "fix": "null|string",
    });
    let shape = json!({
        "schema": "string", "ok": "bool", "checks": [check],
        "workers": [{"name": "string", "url": "string", "ok": "bool", "checks": [check]}],
    });
    assert_shape(&seen.report, &shape);
    assert_eq!(seen.report["schema"], "warmroute.doctor/1");
    let ids = |checks: &Value| -> Vec<String> {
        let checks = checks.as_array().expect("a list of checks").iter();
        checks
            .map(|check| check["id"].as_str().expect("an id").to_owned())
            .collect()
    };
    assert_eq!(ids(&seen.report["checks"]), ROUTER);
    assert_eq!(ids(&seen.report["workers"][0]["checks"]), WORKER);
    let skipped: Vec<String> = seen.with("skip");
    let not_there = [
        "router tenants_salted",
        "router redis",
        "router nats",
        "router replicas",
        "router s3",
    ];
    let one_of_a_kind = [
        "w1 model_agrees",
        "w1 dp_offset",
        "w1 lora",
        "w1 role_pairing",
    ];
    assert_eq!(skipped, [&not_there[..], &one_of_a_kind].concat());
}

#[test]
fn every_form_of_events_ranks_adapters_and_sockets_passes() {
    let dir = tempfile::tempdir().expect("a directory");
    let ipc = |name: &str| format!("ipc://{}", dir.path().join(name).display());
    let (events, replay) = (ipc("events"), ipc("replay"));
    for flags in [
        &[
            "--event-format",
            "array",
            "--hash-format",
            "bytes",
            "--replay-format",
            "old",
        ][..],
        &["--topic", "kv@here", "--block-size", "1"],
        &["--block-size", "256", "--max-num-batched-tokens", "128"],
        &["--loras", "ad1,ad2", "--host-blocks", "16"],
        &["--kv-events", &events, "--replay", &replay],
    ] {
        look_at(&engine(flags), &[]).green();
    }
    let ranks = look_at(&engine(&["--dp-size", "2"]), &[]).green();
    assert_eq!(ranks.check("w1", "dp_ranks")["found"], "2");
    assert_eq!(ranks.check("w1", "dp_offset")["status"], "ok");
}

#[test]
fn without_probes_no_request_reaches_the_engine() {
    let engine = engine(&[]);
    let seen = look_at(&engine, &["--no-probe"]).green();
    assert_eq!(engine.stats()["requests"], 0);
    for id in [
        "usage_details",
        "events_arriving",
        "hash_alias",
        "salt_honoured",
    ] {
        assert_eq!(seen.check("w1", id)["status"], "skip", "{id}");
    }
    for id in [
        "block_size",
        "tokenizer",
        "chat_template",
        "events_endpoint",
        "replay",
    ] {
        assert_eq!(seen.check("w1", id)["status"], "ok", "{id}");
    }
}

#[test]
fn the_text_report_shows_failures_with_their_fix_and_a_summary() {
    let engine = engine(&["--block-size", "32"]);
    let worker = format!("w1={}", engine.url());
    let args = ["doctor", "-w", &worker, "--block-size", "16"];
    let end = Program::finish(&args);
    assert_eq!(end.code, Some(1));
    let lines: Vec<&str> = end.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(
        lines[1].starts_with("w1: fail block_size (found 32, expected 16): "),
        "{}",
        lines[1]
    );
    assert_eq!(
        lines[2],
        "    fix: start the engine with --block-size 16, or set workers[0].block_size: 32"
    );
    assert!(
        lines[3].starts_with("w1: ") && lines[3].contains(" 1 failed, "),
        "{}",
        lines[3]
    );
    let all = Program::finish(&[&args[..], &["-v"]].concat());
    assert!(all.stdout.contains("w1: ok   reachable"), "{}", all.stdout);
    assert!(
        all.stdout.contains("w1: skip role_pairing"),
        "{}",
        all.stdout
    );
}

#[test]
fn the_admin_listener_gives_the_same_report_one_run_at_a_time() {
    let engine = engine(&[]);
    let router = Program::serve(&[format!("w1={}", engine.url())], &[]).ready(1);
    let quiet = RawClient::get(&router.admin(), "/admin/doctor").json();
    assert_eq!(
        (&quiet["schema"], &quiet["ok"]),
        (&json!("warmroute.doctor/1"), &json!(true))
    );
    assert_eq!(engine.stats()["requests"], 0);
    let probed = DoctorRun {
        code: Some(0),
        report: RawClient::get(&router.admin(), "/admin/doctor?probe=true").json(),
    }
    .green();
    assert_eq!(probed.check("w1", "hash_alias")["status"], "ok");
    let first_requests = engine.stats()["requests"].as_u64().expect("a count");
    assert!(first_requests > 0);
    assert_eq!(
        RawClient::get(&router.admin(), "/admin/doctor?probe=perhaps").status,
        400
    );

    engine.fault("hang", 100);
    let mut first = RawClient::connect(&router.admin());
    first.send("GET", "/admin/doctor?probe=true", &[], b"");
    eventually("the first run to be in progress", || {
        (engine.stats()["requests"].as_u64()? > first_requests).then_some(())
    });
    let second = RawClient::get(&router.admin(), "/admin/doctor");
    assert_eq!(
        (second.status, &second.json()["error"]["code"]),
        (409, &json!("conflict"))
    );
    drop(first);
    eventually("its report to be complete", || {
        (RawClient::get(&router.admin(), "/admin/doctor").status == 200).then_some(())
    });
}
