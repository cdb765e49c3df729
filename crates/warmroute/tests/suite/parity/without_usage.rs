//! Engines whose replies lack cached tokens: their counters replace them.

use serde_json::{Value, json};

use crate::harness::{RawClient, RoutedFleet, Stopwatch, eventually, words};

/// Waits until events are the cache source: earlier predictions count separately.
fn wait_for_trusted_events(routed: &RoutedFleet) {
    eventually("the stream to be trusted", || {
        (routed.worker("a")["cache_source"] == "events").then_some(())
    });
}

/// Ten completions, each prompt sent twice.
fn send(routed: &RoutedFleet, topic: &str, fields: &Value) {
    for n in 0..10 {
        let prompt = words(&format!("{topic}{}of", n / 2), 60);
        let mut body =
            json!({"model": "sim", "prompt": prompt, "max_tokens": 2, "ignore_eos": true});
        for (key, value) in fields.as_object().expect("fields") {
            body[key] = value.clone();
        }
        let reply = RawClient::post(
            &routed.router.data(),
            "/v1/completions",
            body.to_string().as_bytes(),
        );
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.json()["usage"]["prompt_tokens_details"], Value::Null);
        routed.caught_up();
    }
}

/// The parity row, once it satisfies `wanted`. Counters are read every 5 s.
fn row(routed: &RoutedFleet, wanted: impl Fn(&Value) -> bool) -> Value {
    let waiting = Stopwatch::start();
    loop {
        let row =
            RawClient::get(&routed.router.admin(), "/admin/parity").json()["workers"][0].clone();
        if wanted(&row) {
            return row;
        }
        assert!(waiting.elapsed().as_secs() < 60, "still {row}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn replies_without_cached_tokens_are_compared_by_the_engines_counters() {
    let routed = RoutedFleet::with(&[&["--no-usage-details"]], "parity: {min_joined: 5}\n", &[]);
    wait_for_trusted_events(&routed);
    send(&routed, "topic", &json!({}));
    let row = row(&routed, |row| row["state"] != "no_data");
    assert_eq!(
        (&row["state"], &row["source"]),
        (&json!("ok"), &json!("engine_metrics")),
        "{row}"
    );
    assert_eq!(
        (&row["requests"], &row["joined"], &row["exact_ratio"]),
        (&json!(10), &json!(0), &Value::Null)
    );
    assert_eq!(row["predicted_tokens"], row["actual_tokens"]);
    assert!(row["actual_tokens"].as_u64() > Some(500), "{row}");
}

#[test]
fn our_incomparable_requests_are_not_taken_for_foreign_ones() {
    let routed = RoutedFleet::with(&[&["--no-usage-details"]], "parity: {min_joined: 5}\n", &[]);
    wait_for_trusted_events(&routed);
    send(&routed, "unjudged", &json!({"prompt_logprobs": 1}));
    send(&routed, "beside", &json!({}));
    let reason = |row: &Value, part: &str| {
        row["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains(part))
    };
    row(&routed, |row| reason(row, "cannot be compared"));
    send(&routed, "alone", &json!({}));
    let row = row(&routed, |row| row["state"] != "no_data");
    assert_eq!(
        (&row["state"], &row["source"]),
        (&json!("ok"), &json!("engine_metrics")),
        "{row}"
    );
}
