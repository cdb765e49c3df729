//! The admin operations of a running router: configuration, totals, decisions and drain.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RoutedFleet, RouterQueries, SimControls, assert_shape,
    chat_message, eventually,
};

fn get(router: &Program, path: &str) -> RawReply {
    RawClient::get(&router.admin(), path)
}

#[test]
#[contract("V43", "S9", "S81")]
fn the_configuration_in_force_is_shown_complete_and_without_secrets() {
    let secret = "sk-0123456789abcdef-very-secret";
    let config = format!(
        "workers: [{{name: kept, url: \"http://127.0.0.1:9\", api_key: {secret}}}]\nrequest: {{max_retries: 7}}\n"
    );
    let router = Program::serve_with(&config, &[], &["--policy", "least_loaded"]);
    let reply = get(&router, "/admin/config");
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("application/json"))
    );
    assert!(!reply.text().contains(secret));
    let shown = reply.json();
    assert_eq!(shown["workers"][0]["api_key"], "***");
    assert_eq!(shown["routing"]["policy"], "least_loaded", "flags count");
    assert_eq!(
        (
            &shown["decisions"]["ring_entries"],
            &shown["decisions"]["candidates"]
        ),
        (&json!(1000), &json!(16))
    );
    assert_eq!(get(&router, "/admin/config?format=json").json(), shown);

    let yaml = get(&router, "/admin/config?format=yaml");
    assert_eq!(
        (yaml.status, yaml.header("content-type")),
        (200, Some("application/yaml"))
    );
    assert!(
        yaml.text().contains("policy: least_loaded") && yaml.text().contains("***"),
        "{}",
        yaml.text()
    );
    assert!(!yaml.text().contains(secret));
    let other = get(&router, "/admin/config?format=toml");
    assert_eq!(
        (other.status, other.error_code().as_str()),
        (400, "invalid_request")
    );
}

#[test]
#[contract("V43")]
fn only_the_latest_decisions_are_kept() {
    let routed = RoutedFleet::with(&[&[]], "decisions: {ring_entries: 3}\n", &[]);
    let ids: Vec<String> = (0..5)
        .map(|n| {
            routed
                .chat(&[chat_message("user", &n.to_string())], &[])
                .decision
        })
        .collect();
    let kept: Vec<Value> = routed
        .router
        .receipts()
        .iter()
        .map(|receipt| receipt["id"].clone())
        .collect();
    assert_eq!(json!(kept), json!([ids[4], ids[3], ids[2]]));
}

#[test]
#[contract("V43")]
fn totals_equal_the_metrics() {
    let routed = RoutedFleet::with(&[&[], &[]], "metrics: {enabled: false}\n", &[]);
    let totals = || get(&routed.router, "/admin/stats").json()["totals"].clone();
    let before = totals();
    let sums = before.as_object().expect("an object of sums");
    for counter in [
        "requests",
        "attempts",
        "shed",
        "decisions",
        "panics",
        "upstream_failures",
        "prompt_tokens",
        "predicted_cached_tokens",
        "actual_cached_tokens",
        "parity_requests",
        "kv_events",
        "kv_events_ignored",
        "kv_decode_errors",
        "kv_gaps",
        "kv_resets",
        "index_shed",
        "prompt_source",
    ] {
        let name = format!("warmroute_{counter}_total");
        assert!(sums[&name].is_u64(), "{name} is present before any event");
    }
    assert_eq!(before["warmroute_requests_total"], 0);
    let turns = [
        routed.chat(&[chat_message("user", "one")], &[]),
        routed.chat(&[chat_message("user", "two")], &[]),
    ];
    turns.iter().for_each(|turn| drop(routed.receipt(turn)));
    let after = totals();
    assert_eq!(
        (
            &after["warmroute_requests_total"],
            &after["warmroute_decisions_total"]
        ),
        (&json!(2), &json!(2))
    );
    let prompt_tokens: u64 = turns.iter().map(|turn| turn.prompt_tokens).sum();
    assert_eq!(after["warmroute_prompt_tokens_total"], prompt_tokens);
}

const SLOW: &[&str] = &["--itl-ms", "20", "--overhead-ms", "1", "--speed", "1"];

fn streaming(routed: &RoutedFleet, tokens: u32) -> (RawClient, RawReply) {
    let body = json!({
        "model": "sim", "stream": true, "max_tokens": tokens, "ignore_eos": true, "messages": [chat_message("user", "hi")],
    });
    let mut client = RawClient::chat(&routed.router.data(), &body);
    let begun = client.read_until("content");
    (client, begun)
}

fn drain(routed: &RoutedFleet, body: &str) -> RawReply {
    RawClient::post(&routed.router.admin(), "/admin/drain", body.as_bytes())
}

#[test]
#[contract("V43")]
fn a_drain_finishes_running_requests_refuses_new_ones_and_reports_its_status() {
    let routed = RoutedFleet::with(&[SLOW], "server: {drain_grace: 0s}\n", &[]);
    let template = json!({"draining": "bool", "since": "null|time", "open_streams": "int", "cut_streams": "int"});
    let status = || get(&routed.router, "/admin/drain/status").json();
    let before = status();
    assert_shape(&before, &template);
    assert_eq!(
        (&before["draining"], &before["since"]),
        (&json!(false), &Value::Null)
    );
    for (body, code) in [
        ("{", "invalid_json"),
        (r#"{"timeout":"never"}"#, "invalid_request"),
    ] {
        let refused = drain(&routed, body);
        assert_eq!((refused.status, refused.error_code().as_str()), (400, code));
    }
    assert_eq!(
        status()["draining"],
        false,
        "a refused drain has not started"
    );
    assert_eq!(get(&routed.router, "/admin/drain").status, 405);

    let (mut client, begun) = streaming(&routed, 60);
    let first = drain(&routed, "");
    assert_eq!(first.status, 200);
    assert_shape(&first.json(), &template);
    let want = (json!(true), json!(1), json!(0));
    let drain_state = |reply: &Value| {
        (
            reply["draining"].clone(),
            reply["open_streams"].clone(),
            reply["cut_streams"].clone(),
        )
    };
    assert_eq!(drain_state(&first.json()), want);
    let again = drain(&routed, r#"{"timeout":"0s"}"#);
    assert_eq!(
        (again.status, &again.json()["since"]),
        (200, &first.json()["since"]),
        "the first call counts"
    );
    eventually("the listener to be closed", || {
        std::net::TcpStream::connect(routed.router.data()).err()
    });
    let reply = client.body(begun);
    assert!(
        reply.clean && reply.text().ends_with("data: [DONE]\n\n"),
        "{}",
        reply.text()
    );
    eventually("the request to be over", || {
        (status()["open_streams"] == 0).then_some(())
    });
    assert_eq!(status()["since"], first.json()["since"]);

    routed.router.signal("TERM");
    let RoutedFleet { router, .. } = routed;
    let ended = router.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
#[contract("V43")]
fn a_request_longer_than_the_drain_timeout_is_cut_counted_and_changes_the_exit_code() {
    let routed = RoutedFleet::with(&[SLOW], "server: {drain_grace: 0s}\n", &[]);
    let (mut client, begun) = streaming(&routed, 5000);
    assert_eq!(drain(&routed, r#"{"timeout":"50ms"}"#).status, 200);
    let reply = client.body(begun);
    assert!(
        !reply.clean && reply.text().contains("\"code\":\"stream_interrupted\""),
        "{}",
        reply.text()
    );
    let status = eventually("the cut to be counted", || {
        let status = get(&routed.router, "/admin/drain/status").json();
        (status["cut_streams"] == 1).then_some(status)
    });
    assert_eq!(
        (&status["draining"], &status["open_streams"]),
        (&json!(true), &json!(0))
    );
    eventually("the engine to be idle", || {
        (routed.engines[0].stats()["running"] == 0).then_some(())
    });
    routed.router.signal("TERM");
    let RoutedFleet { router, .. } = routed;
    assert_eq!(router.wait().code, Some(3));
}
