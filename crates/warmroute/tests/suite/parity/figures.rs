//! `/admin/parity` in its documented shape, with correct figures.

use serde_json::{Value, json};

use crate::harness::{Page, RawClient, RoutedFleet, assert_shape, chat_message, words};

fn parity(routed: &RoutedFleet) -> Value {
    RawClient::get(&routed.router.admin(), "/admin/parity").json()
}

fn figures() -> serde_json::Map<String, Value> {
    let figures = json!({
        "requests": "int", "joined": "int", "source": "string", "exact": "int", "exact_ratio": "null|number",
        "predicted_tokens": "int", "actual_tokens": "int", "drift_tokens_p50": "null|int",
        "drift_tokens_p99": "null|int", "over_ratio": "null|number", "state": "string", "since": "time",
        "reason": "null|string", "covered_s": "number",
    });
    figures.as_object().expect("an object").clone()
}

#[test]
fn a_conversation_is_predicted_to_the_token_and_the_report_shows_it() {
    let routed = RoutedFleet::with(
        &[&[], &["--dp-size", "2"]],
        "parity: {min_joined: 4}\n",
        &[],
    );
    let mut row = json!({"worker": "string", "dp_rank": "int"});
    row.as_object_mut().expect("an object").extend(figures());
    let class = json!({
        "from_ms": "number", "samples": "int", "ratio_p10": "number", "ratio_p50": "number", "ratio_p90": "number",
        "margin": "number",
    });
    let ttft = json!({"worker": "string", "classes": [class]});
    let shape = json!({"window_s": "int", "workers": [row], "total": figures(), "ttft": [ttft]});

    let idle = parity(&routed);
    assert_shape(&idle, &shape);
    assert_eq!(
        (&idle["window_s"], &idle["total"]["state"]),
        (&json!(600), &json!("no_data"))
    );
    let names = |it: &Value| -> Vec<(Value, Value)> {
        let rows = it["workers"].as_array().expect("rows").iter();
        rows.map(|row| (row["worker"].clone(), row["dp_rank"].clone()))
            .collect()
    };
    let targets = [("a", 0), ("b", 0), ("b", 1)].map(|(worker, rank)| (json!(worker), json!(rank)));
    assert_eq!(names(&idle), targets);

    let mut messages = vec![chat_message("system", &words("figures", 60))];
    let mut turns = Vec::new();
    for n in 0..6 {
        messages.push(chat_message("user", &words(&format!("turn{n}of"), 20)));
        let turn = routed.chat(&messages, &[("x-warmroute-worker", "a")]);
        messages.push(chat_message("assistant", &turn.text));
        // The receipt is settled, so the request is counted.
        routed.receipt(&turn);
        turns.push(turn);
    }
    let cached: u64 = turns.iter().map(|turn| turn.cached).sum();
    let report = parity(&routed);
    assert_shape(&report, &shape);
    for figures in [&report["workers"][0], &report["total"]] {
        for (key, value) in [
            ("requests", json!(6)),
            ("joined", json!(6)),
            ("source", json!("usage")),
            ("exact", json!(6)),
            ("exact_ratio", json!(1.0)),
            ("predicted_tokens", json!(cached)),
            ("actual_tokens", json!(cached)),
            ("drift_tokens_p50", json!(0)),
            ("drift_tokens_p99", json!(0)),
            ("over_ratio", json!(0.0)),
            ("state", json!("ok")),
            ("reason", Value::Null),
            ("covered_s", json!(600)),
        ] {
            assert_eq!(figures[key], value, "{key} of {figures}");
        }
    }
    assert!(cached > 0);
    assert_eq!(report["workers"][1]["requests"], 0);
    assert_eq!(
        [&routed.worker("a")["parity"], &routed.worker("b")["parity"]],
        ["ok", "no_data"]
    );
    let page = Page::read(&RawClient::get(&routed.router.admin(), "/metrics").text());
    let exact = page.value("warmroute_parity_exact_ratio", &[("worker", "a")]);
    assert_eq!(exact.to_bits(), 1.0_f64.to_bits());
    let of_b = page
        .of("warmroute_parity_exact_ratio")
        .filter(|sample| sample.labels["worker"] == "b")
        .count();
    assert_eq!(of_b, 0, "b holds no block");
}
