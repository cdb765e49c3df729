//! Latency targets of requests: by header, tenant and configuration, in receipts, refusals and
//! metrics.

use serde_json::{Value, json};

use crate::harness::{
    RawClient, RawReply, RoutedFleet, RouterQueries as _, SimControls as _, chat, eventually,
    long_chat, streamed,
};

/// A tenth of a millisecond of real time for each prompt token.
const SLOW: &[&str] = &["--speed", "1", "--max-model-len", "65536"];

/// Words of a prompt that occupies a [`SLOW`] engine for six seconds.
const LONG: usize = 60_000;

fn post(routed: &RoutedFleet, headers: &[(&str, &str)], body: &Value) -> RawReply {
    let body = body.to_string();
    RawClient::post_with(
        &routed.router.data(),
        "/v1/chat/completions",
        headers,
        body.as_bytes(),
    )
}

fn counted(routed: &RoutedFleet, slo: &str, result: &str) -> f64 {
    let labels = format!("slo=\"{slo}\",result=\"{result}\"");
    routed
        .router
        .metric("warmroute_slo_requests_total", &labels)
}

/// A streamed chat whose engine reports its tokens.
fn with_usage(tokens: u32) -> Value {
    let mut body = streamed(chat("sim", "hello", tokens));
    body["stream_options"] = json!({"include_usage": true});
    body
}

#[test]
fn targets_in_headers_are_in_the_receipt_and_counted_as_met_or_missed() {
    let routed = RoutedFleet::with(&[SLOW], "", &[]);
    let generous = [
        ("x-request-id", "generous"),
        ("x-warmroute-slo-ttft-ms", "60000"),
        ("x-warmroute-slo-tpot-ms", "30000"),
    ];
    assert_eq!(post(&routed, &generous, &with_usage(4)).status, 200);
    let slo = &routed.router.receipt("generous")["slo"];
    assert_eq!(slo["ttft_target_ms"], json!(60_000.0));
    assert_eq!(slo["tpot_target_ms"], json!(30_000.0));
    let number = |name: &str| slo[name].as_f64().expect("a prediction");
    let headroom = 60_000.0 - number("predicted_ttft_ms");
    assert!((number("headroom_ms") - headroom).abs() < 1e-3, "{slo}");

    // 2,000 tokens take a fifth of a second.
    let strict = [("x-request-id", "strict"), ("x-sgl-ttft-slo-ms", "1")];
    let long = streamed(long_chat("sim", 2_000, 1));
    assert_eq!(post(&routed, &strict, &long).status, 200);
    let receipt = routed.router.receipt("strict");
    assert_eq!(receipt["slo"]["ttft_target_ms"], json!(1.0));

    // Without a stream there is no first token to compare.
    let whole = [("x-request-id", "whole"), ("x-llm-d-slo-ttft-ms", "1")];
    assert_eq!(post(&routed, &whole, &chat("sim", "hello", 1)).status, 200);
    routed.router.receipt("whole");
    let plain = [("x-request-id", "plain")];
    assert_eq!(post(&routed, &plain, &with_usage(4)).status, 200);
    assert!(routed.router.receipt("plain").get("slo").is_none());

    for (slo, result, count) in [
        ("ttft", "met", 1.0),
        ("ttft", "missed", 1.0),
        ("tpot", "met", 1.0),
        ("tpot", "missed", 0.0),
    ] {
        assert_eq!(counted(&routed, slo, result), count, "{slo} {result}");
    }
}

#[test]
fn a_target_that_is_no_time_is_one_clear_400() {
    let routed = RoutedFleet::with(&[&[]], "", &[]);
    for (name, value) in [
        ("x-warmroute-slo-ttft-ms", "soon"),
        ("x-warmroute-slo-tpot-ms", "0"),
        ("x-sgl-tps-slo", "NaN"),
    ] {
        let reply = post(&routed, &[(name, value)], &chat("sim", "hello", 1));
        assert_eq!(reply.status, 400, "{name}");
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "invalid_request", "{name}");
        assert_eq!(error["param"], name);
        let message = error["message"].as_str().expect("a message");
        assert!(
            message.contains(name) && message.contains(value),
            "{message}"
        );
    }
    assert_eq!(routed.engines[0].stats()["requests"], 0);
}

#[test]
fn a_request_that_every_worker_would_fail_is_refused_at_once_where_configured() {
    let routed = RoutedFleet::with_routing(&[SLOW], "  slo: {refuse: true}\n");
    let long = streamed(long_chat("sim", LONG, 1));
    let long = RawClient::chat(&routed.router.data(), &long);
    eventually("the long prompt to be under way", || {
        (routed.router.metric("warmroute_leases", "") == 1.0).then_some(())
    });
    let hasty = [
        ("x-request-id", "hasty"),
        ("x-warmroute-slo-ttft-ms", "100"),
    ];
    let refused = post(&routed, &hasty, &streamed(chat("sim", "hello", 1)));
    assert_eq!(
        (refused.status, refused.error_code()),
        (503, "overloaded".to_owned())
    );
    let seconds: u32 = refused
        .header("retry-after")
        .and_then(|seconds| seconds.parse().ok())
        .expect("a number of seconds");
    assert!((1..=60).contains(&seconds), "{seconds}");
    let slo = &routed.router.receipt("hasty")["slo"];
    assert_eq!(slo["ttft_target_ms"], json!(100.0));
    assert!(
        slo["headroom_ms"].as_f64().expect("a number") < 0.0,
        "{slo}"
    );
    let shed = |reason: &str| {
        let labels = format!("reason=\"{reason}\"");
        routed.router.metric("warmroute_shed_total", &labels)
    };
    assert_eq!((shed("slo"), shed("overloaded")), (1.0, 0.0));

    let mut patient = RawClient::connect(&routed.router.data());
    let body = streamed(chat("sim", "hello", 1)).to_string();
    let headers = [("x-warmroute-slo-ttft-ms", "600000")];
    patient.send("POST", "/v1/chat/completions", &headers, body.as_bytes());
    eventually("it to wait", || {
        (routed.router.metric("warmroute_queued", "") == 1.0).then_some(())
    });
    drop(long);
    assert_eq!(patient.reply().status, 200);
    assert_eq!(counted(&routed, "ttft", "met"), 1.0);
}

#[test]
fn a_tenant_has_targets_of_its_own_between_those_of_the_request_and_of_the_router() {
    // Continues the section `routing`, with which the file begins.
    let yaml = "  slo: {ttft: 9s, tpot: 90ms}\n\
                api_keys:\n\
                - {name: a, key: sk-a, slo_ttft: 2500ms, slo_tpot: 40ms}\n\
                - {name: b, key: sk-b}\n";
    let routed = RoutedFleet::with(&[&[]], yaml, &[]);
    let none = ("accept", "*/*");
    let own = ("x-warmroute-slo-ttft-ms", "700");
    for (id, key, header, ttft, tpot) in [
        ("r1", "Bearer sk-a", none, 2500.0, 40.0),
        ("r2", "Bearer sk-b", none, 9000.0, 90.0),
        // A target is no override of the decision: it needs no scope.
        ("r3", "Bearer sk-a", own, 700.0, 40.0),
        ("r4", "Bearer sk-b", own, 700.0, 90.0),
    ] {
        let all = [("x-request-id", id), ("authorization", key), header];
        assert_eq!(post(&routed, &all, &chat("sim", "hello", 1)).status, 200);
        let slo = &routed.router.receipt(id)["slo"];
        assert_eq!(slo["ttft_target_ms"], json!(ttft), "{id}");
        assert_eq!(slo["tpot_target_ms"], json!(tpot), "{id}");
    }
}

#[test]
fn predicted_times_to_first_token_are_compared_with_those_of_streams() {
    let routed = RoutedFleet::with(&[SLOW, SLOW], "", &[]);
    let samples = |worker: usize| {
        let report = RawClient::get(&routed.router.admin(), "/admin/parity").json();
        let classes = report["ttft"][worker]["classes"]
            .as_array()
            .expect("a list");
        let of = |class: &Value| class["samples"].as_u64().expect("a number");
        classes.iter().map(of).sum::<u64>()
    };
    assert_eq!([samples(0), samples(1)], [0, 0]);
    let to_a = [("x-warmroute-worker", "a")];
    for words in [10, 500, 3_000] {
        let body = streamed(long_chat("sim", words, 1));
        assert_eq!(post(&routed, &to_a, &body).status, 200);
    }
    assert_eq!(post(&routed, &to_a, &chat("sim", "whole", 1)).status, 200);
    assert_eq!([samples(0), samples(1)], [3, 0]);
}
