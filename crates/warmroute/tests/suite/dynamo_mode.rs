//! The modes and flags of the Dynamo router.

use std::net::TcpListener;

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RoutedFleet, RouterQueries, chat, chat_message, eventually, long_chat,
    streamed, words,
};

fn term(row: &Value, name: &str) -> f64 {
    row["terms"][name]
        .as_f64()
        .unwrap_or_else(|| panic!("no term {name} in {row}"))
}

#[test]
#[contract("DY1")]
fn every_mode_serves_the_same_api() {
    for (mode, policy) in [
        ("kv", "dynamo_cost"),
        ("round-robin", "round_robin"),
        ("random", "random"),
        ("dynamo-cost", "dynamo_cost"),
        ("warm", "warm"),
        ("kv-aware", "kv_aware"),
        ("least-loaded", "least_loaded"),
    ] {
        let routed = RoutedFleet::with(&[&[], &[]], "", &["--router-mode", mode]);
        let turn = routed.chat(&[chat_message("user", "hello")], &[]);
        assert_eq!(
            (turn.reply.status, turn.reply.header("x-warmroute-policy")),
            (200, Some(policy)),
            "{mode}"
        );
        let body = streamed(chat("sim", "hello", 3)).to_string();
        let stream = RawClient::post(
            &routed.router.data(),
            "/v1/chat/completions",
            body.as_bytes(),
        );
        assert!(stream.text().ends_with("data: [DONE]\n\n"), "{mode}");
        assert_eq!(
            routed
                .completion(json!({"prompt": "hello"}), &[])
                .reply
                .status,
            200
        );
        routed.router.wait_until_idle();
    }
}

#[test]
#[contract("DY13", "DY14", "DY15")]
fn the_cost_of_the_kv_mode_is_prefill_blocks_plus_decode_blocks() {
    let routed = RoutedFleet::with(
        &[&[], &[]],
        "",
        &["--router-mode", "kv", "--kv-overlap-score-weight", "2.5"],
    );
    let messages = [chat_message("user", &words("cost", 80))];
    let first = routed.chat(&messages, &[]);
    let second = routed.chat(&messages, &[]);
    assert_eq!(
        second.worker, first.worker,
        "the prompt is warm there and nothing else runs"
    );
    assert_eq!(second.predicted, second.cached);
    let receipt = routed.receipt(&second);
    let tokens = receipt["prompt"]["tokens"].as_f64().expect("tokens");
    for row in receipt["candidates"].as_array().expect("candidates") {
        let (prefill, decode) = (term(row, "prefill_blocks"), term(row, "decode_blocks"));
        assert_eq!(
            prefill,
            row["uncached_tokens"].as_f64().expect("tokens") / 16.0
        );
        assert_eq!(decode, (tokens / 16.0).ceil());
        assert_eq!(
            (row["cost"].as_f64(), &row["cost_unit"]),
            (Some(2.5 * prefill + decode), &json!("blocks"))
        );
        assert_eq!(
            (&row["predicted_ttft_ms"], term(row, "overlap_weight")),
            (&Value::Null, 2.5)
        );
    }
    assert_eq!(
        (&receipt["regret_ms"], &receipt["method"]),
        (&Value::Null, &json!("policy"))
    );
}

#[test]
#[contract("DY11")]
fn without_tracking_the_cost_is_prefill_only() {
    let routed = RoutedFleet::with(
        &[&[], &[]],
        "",
        &["--router-mode", "kv", "--no-track-active-blocks"],
    );
    let turn = routed.chat(&[chat_message("user", &words("untracked", 80))], &[]);
    let receipt = routed.receipt(&turn);
    for row in receipt["candidates"].as_array().expect("candidates") {
        assert_eq!(term(row, "decode_blocks"), 0.0);
        assert_eq!(row["cost"].as_f64(), Some(term(row, "prefill_blocks")));
    }
}

#[test]
#[contract("DY16")]
fn a_request_may_set_its_own_overlap_weight_and_temperature() {
    let routed = RoutedFleet::with(&[&[], &[]], "", &["--router-mode", "kv"]);
    let messages = [chat_message("user", &words("own", 80))];
    let warm = routed.chat(&messages, &[]);
    let receipt = routed.receipt(&routed.chat(&messages, &[("x-warmroute-overlap-weight", "0")]));
    for row in receipt["candidates"].as_array().expect("candidates") {
        assert_eq!(
            row["cost"].as_f64(),
            Some(term(row, "decode_blocks")),
            "caches do not count"
        );
    }
    // At the highest temperature both are nearly equally likely: twenty equal draws happen once in
    // a hundred thousand runs, and forty practically never.
    let hot = [("x-warmroute-temperature", "10")];
    let elsewhere = (0..40).any(|_| routed.chat(&messages, &hot).worker != warm.worker);
    assert!(elsewhere, "a temperature draws the dearer worker at times");
}

#[test]
#[contract("DY2", "DY4")]
fn without_overlap_weight_no_event_socket_is_opened() {
    let engine = Program::engine(&["--no-kv-events", "--speed", "20"]);
    let worker = [format!("a={}", engine.url())];
    let publisher = TcpListener::bind("127.0.0.1:0").expect("a free port");
    publisher
        .set_nonblocking(true)
        .expect("accepting can be made non-blocking");
    let endpoint = format!("a=tcp://{}", publisher.local_addr().expect("an address"));
    let send = |router: &Program| {
        let body = chat("sim", "hello", 2).to_string();
        let reply = RawClient::post(&router.data(), "/v1/chat/completions", body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
    };
    for flags in [
        ["--router-mode", "kv", "--kv-overlap-score-weight", "0"].as_slice(),
        &["--kv-overlap-score-weight", "0.0"],
        &["--router-mode", "kv", "--no-kv-events"],
    ] {
        let router =
            Program::serve(&worker, &[flags, &["--kv-events", &endpoint]].concat()).ready(1);
        send(&router);
        let streams = RawClient::get(&router.admin(), "/admin/streams").json();
        assert_eq!(streams, json!({"streams": []}), "{flags:?}");
        assert_eq!(router.workers()[0]["cache_source"], "predicted");
        // The worker is ready, so everything that follows its discovery has been started.
        assert!(
            publisher.accept().is_err(),
            "{flags:?} opened an event socket"
        );
    }
    let router =
        Program::serve(&worker, &["--router-mode", "kv", "--kv-events", &endpoint]).ready(1);
    eventually("the event socket of a router that follows events", || {
        publisher.accept().ok()
    });
    send(&router);
}

#[test]
#[contract("DY5", "DY6", "DY7")]
fn prediction_settings_warn_while_events_are_followed() {
    let engine = Program::engine(&[]);
    let flags = [
        "--router-ttl",
        "60s",
        "--router-max-tree-size",
        "1000",
        "--router-prune-target-ratio",
        "0.5",
    ];
    let names = [
        "--router-ttl",
        "--router-max-tree-size",
        "--router-prune-target-ratio",
    ];
    let loud = Program::serve(&[engine.url()], &flags).ready(1);
    for name in names {
        eventually(name, || {
            loud.stderr()
                .lines()
                .any(|line| line.contains("WARN") && line.contains(name))
                .then_some(())
        });
    }
    let quiet =
        Program::serve(&[engine.url()], &[&flags[..], &["--no-kv-events"]].concat()).ready(1);
    assert!(
        names.iter().all(|name| !quiet.stderr().contains(name)),
        "{}",
        quiet.stderr()
    );
}

#[test]
#[contract("DY8", "DY9", "DY10")]
fn replica_settings_are_off_by_default_and_a_single_router_has_nothing_to_reset() {
    let serve = ["serve", "-w", "http://127.0.0.1:1", "--port", "0"];
    let none = ["--router-snapshot-threshold", "0"];
    let by_flag = Program::finish(&[&serve[..], &none].concat());
    assert_eq!(by_flag.code, Some(2), "{}", by_flag.stderr);
    let key = "replicas.nats.snapshot_threshold";
    let variable = format!("WARMROUTE_{}", key.to_uppercase().replace('.', "__"));
    let by_variable = Program::finish_with_env(&serve, &[(&variable, "0")]);
    assert_eq!(by_variable.code, Some(78), "{}", by_variable.stderr);
    for (refused, name) in [(by_flag, none[0]), (by_variable, key)] {
        let text = refused.stderr;
        assert!(text.contains(name) && text.contains("at least 1"), "{text}");
    }
    let engine = Program::engine(&[]);
    // A single router keeps no state over a restart, so it always starts fresh, and it warns about
    // the flag.
    let flags = [
        "--router-reset-states",
        "--router-snapshot-threshold",
        "1000000",
    ];
    let fresh = Program::serve(&[engine.url()], &flags).ready(1);
    eventually("the warning", || {
        fresh
            .stderr()
            .lines()
            .any(|line| line.contains("--router-reset-states"))
            .then_some(())
    });
    let shown = |router: &Program| {
        RawClient::get(&router.admin(), "/admin/config").json()["replicas"].clone()
    };
    assert_eq!(shown(&fresh)["reset_states"], json!(true));
    let usual = shown(&Program::serve(&[engine.url()], &[]).ready(1));
    assert_eq!(
        (&usual["load_sync"], &usual["reset_states"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(
        (&usual["mode"], &usual["nats"]["snapshot_threshold"]),
        (&json!("none"), &json!(1_000_000))
    );
}

#[test]
#[contract("DY12")]
fn a_worker_above_the_busy_threshold_gets_no_request_until_it_has_room_again() {
    // A hundred blocks and slow replies: one request of about sixty blocks fills most of the cache.
    let small = ["--kv-blocks", "100", "--speed", "1", "--itl-ms", "50"];
    // Without the queue, no request waits for room.
    let at_once = "queue: {enabled: false}\n";
    let routed = RoutedFleet::with(
        &[&small, &small],
        at_once,
        &["--busy-threshold", "0.4", "--policy", "round-robin"],
    );
    let usage = |name: &str| {
        routed.worker(name)["engine"]["kv_usage_ratio"]
            .as_f64()
            .unwrap_or(0.0)
    };
    let fill = |name: &str| {
        let body = streamed(long_chat("sim", 900, 600)).to_string();
        let mut client = RawClient::connect(&routed.router.data());
        client.send(
            "POST",
            "/v1/chat/completions",
            &[("x-warmroute-worker", name)],
            body.as_bytes(),
        );
        eventually("the engine to report its cache usage", || {
            (usage(name) > 0.4).then_some(())
        });
        client
    };
    let send = |id: &str| {
        let body = chat("sim", "hello", 1).to_string();
        RawClient::post_with(
            &routed.router.data(),
            "/v1/chat/completions",
            &[("x-request-id", id)],
            body.as_bytes(),
        )
    };
    let a = fill("a");
    for n in 0..4 {
        let id = format!("past-{n}");
        assert_eq!(send(&id).header("x-warmroute-worker"), Some("b"));
        let excluded = routed.router.receipt(&id)["excluded"].clone();
        assert_eq!(
            excluded,
            json!([{"target": {"worker": "a", "dp_rank": 0}, "reason": "busy"}])
        );
    }
    // A request that may not use the full worker is not refused because of it.
    let elsewhere =
        json!({"model": "sim", "prompt": "hello", "worker": "b", "exclude": ["b"]}).to_string();
    let refused = RawClient::post(&routed.router.data(), "/v1/route", elsewhere.as_bytes());
    assert_eq!(
        (refused.status, refused.error_code()),
        (503, "no_worker".to_owned())
    );
    let b = fill("b");
    let turned_away = send("full");
    assert_eq!(
        (turned_away.status, turned_away.error_code()),
        (503, "overloaded".to_owned())
    );
    assert!(turned_away.header("retry-after").is_some());
    drop((a, b));
    eventually("room on both", || {
        (usage("a") <= 0.4 && usage("b") <= 0.4).then_some(())
    });
    let served: Vec<_> = ["x", "y"]
        .map(|id| send(id).header("x-warmroute-worker").map(str::to_owned))
        .into();
    assert_ne!(served[0], served[1], "both have their turn again");
}

#[test]
#[contract("DY1", "DY2", "DY3", "DY5", "DY6", "DY7", "DY12", "V21")]
fn every_setting_is_a_flag_a_key_and_a_variable() {
    for (flag, key, bad) in [
        ("--router-mode", "routing.policy", "best"),
        ("--kv-overlap-score-weight", "routing.overlap_weight", "101"),
        ("--router-temperature", "routing.temperature", "11"),
        ("--router-ttl", "kv_events.prediction.ttl", "0s"),
        (
            "--router-max-tree-size",
            "kv_events.prediction.max_blocks",
            "0",
        ),
        (
            "--router-prune-target-ratio",
            "kv_events.prediction.prune_target_ratio",
            "1.1",
        ),
        ("--busy-threshold", "routing.busy_threshold", "1.1"),
        (
            "--kv-medium-gpu-weight",
            "routing.medium_weights.gpu",
            "1.1",
        ),
        ("--kv-medium-cpu-weight", "routing.medium_weights.cpu", "2"),
        (
            "--kv-medium-disk-weight",
            "routing.medium_weights.disk",
            "nan",
        ),
    ] {
        let serve = [
            "serve",
            "-w",
            "http://127.0.0.1:1",
            "--port",
            "0",
            "--admin-listen",
            "127.0.0.1:0",
        ];
        let by_flag = Program::finish(&[&serve[..], &[flag, bad]].concat());
        assert_eq!(by_flag.code, Some(2), "{flag}: {}", by_flag.stderr);
        assert!(
            by_flag.stderr.contains(if flag == "--router-mode" {
                "--policy"
            } else {
                flag
            }),
            "{}",
            by_flag.stderr
        );
        let variable = format!("WARMROUTE_{}", key.to_uppercase().replace('.', "__"));
        let by_variable = Program::finish_with_env(&serve, &[(&variable, bad)]);
        assert_eq!(
            by_variable.code,
            Some(78),
            "{variable}: {}",
            by_variable.stderr
        );
        assert!(by_variable.stderr.contains(key), "{}", by_variable.stderr);
    }
}
