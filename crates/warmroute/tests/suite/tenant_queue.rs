//! Tenants whose requests wait for the same worker.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    RawClient, RoutedFleet, RouterQueries as _, chat, eventually, long_chat, streamed,
};

/// A tenth of a millisecond of real time for each prompt token.
const SLOW: &[&str] = &["--speed", "1", "--max-model-len", "65536"];

/// Words of a prompt that occupies a [`SLOW`] engine for six seconds. Tests end it as soon as others wait behind it.
const LONG: usize = 60_000;

fn send(routed: &RoutedFleet, tenant: &str, id: &str, body: &Value) -> RawClient {
    let mut client = RawClient::connect(&routed.router.data());
    let bearer = format!("Bearer sk-{tenant}");
    let headers = [("x-request-id", id), ("authorization", &*bearer)];
    client.send(
        "POST",
        "/v1/chat/completions",
        &headers,
        body.to_string().as_bytes(),
    );
    client
}

/// A prompt that shares no prefix with that of another id, so that no engine has it in its cache.
fn prompt(id: &str, words: usize) -> Value {
    streamed(chat("sim", &format!("{id} {}", "word ".repeat(words)), 1))
}

/// Sends a long prompt and waits until it is under way.
fn occupy(routed: &RoutedFleet, tenant: &str) -> RawClient {
    let long = streamed(long_chat("sim", LONG, 1));
    let client = send(routed, tenant, "long", &long);
    eventually("the long prompt to be under way", || {
        (routed.router.metric("warmroute_leases", "") == 1.0).then_some(())
    });
    client
}

fn waiting(routed: &RoutedFleet, count: f64) {
    eventually("this many requests to wait", || {
        (routed.router.metric("warmroute_queued", "") == count).then_some(())
    });
}

/// Returns how many requests of each tenant wait, by the admin listener.
fn queued(routed: &RoutedFleet) -> Value {
    let reply = RawClient::get(&routed.router.admin(), "/admin/tenants").json();
    let tenants = reply["tenants"].as_array().expect("a list");
    tenants
        .iter()
        .map(|tenant| tenant["queued"].clone())
        .collect()
}

#[test]
#[contract("V32")]
fn a_tenant_with_its_part_of_the_queue_full_is_told_to_try_again_and_no_other_is() {
    let yaml = "tenants:\n  defaults: {queued: 1}\n  api_keys:\n  - {name: a, key: sk-a}\n  - {name: b, key: sk-b}\n";
    let routed = RoutedFleet::with(&[SLOW], yaml, &[]);
    let _long = occupy(&routed, "a");
    let first = send(&routed, "a", "a1", &prompt("a1", 10));
    waiting(&routed, 1.0);
    let refused = send(&routed, "a", "a2", &prompt("a2", 10)).reply();
    assert_eq!(
        (refused.status, refused.error_code()),
        (429, "tenant_queue_full".to_owned())
    );
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.header("x-ratelimit-limit"), Some("1"));
    let _other = send(&routed, "b", "b1", &prompt("b1", 10));
    waiting(&routed, 2.0);
    assert_eq!(queued(&routed), json!([1, 1]));
    // A client that leaves makes room for the next.
    drop(first);
    waiting(&routed, 1.0);
    assert_eq!(queued(&routed), json!([0, 1]));
    let _next = send(&routed, "a", "a3", &prompt("a3", 10));
    waiting(&routed, 2.0);
}

#[test]
#[contract("V32", "F79")]
fn a_tenant_whose_requests_have_half_of_the_bytes_of_the_queue_keeps_no_other_out() {
    let yaml = "queue: {max_bytes: 1MiB}\napi_keys: [{name: a, key: sk-a}, {name: b, key: sk-b}]\n";
    let routed = RoutedFleet::with(&[SLOW], yaml, &[]);
    let _long = occupy(&routed, "a");
    // Two of these fit into the queue, and one into its half.
    let large = |id: &str| {
        let mut body = prompt(id, 10);
        body["metadata"] = json!({"padding": "x".repeat(400 << 10)});
        body
    };
    let first = send(&routed, "a", "a1", &large("a1"));
    waiting(&routed, 1.0);
    let refused = send(&routed, "a", "a2", &large("a2")).reply();
    assert_eq!(
        (refused.status, refused.error_code()),
        (429, "tenant_queue_full".to_owned())
    );
    assert_eq!(refused.header("retry-after"), Some("1"));
    let message = refused.text();
    assert!(message.contains("queue.max_bytes"), "{message}");
    let _other = send(&routed, "b", "b1", &large("b1"));
    waiting(&routed, 2.0);
    // A client that leaves makes room for the next.
    drop(first);
    waiting(&routed, 1.0);
    let _next = send(&routed, "a", "a3", &large("a3"));
    waiting(&routed, 2.0);
}

#[test]
#[contract("F79")]
fn a_full_queue_answers_429_to_a_tenant_above_its_part_and_503_to_one_below_it() {
    let yaml = "queue: {max_entries: 2}\ntenants:\n  defaults: {queued: 1}\n  api_keys:\n  - {name: a, key: sk-a}\n  \
                - {name: b, key: sk-b}\n  - {name: c, key: sk-c}\n";
    let routed = RoutedFleet::with(&[SLOW], yaml, &[]);
    let _long = occupy(&routed, "a");
    let _first = send(&routed, "a", "a1", &prompt("a1", 10));
    waiting(&routed, 1.0);
    let _other = send(&routed, "b", "b1", &prompt("b1", 10));
    waiting(&routed, 2.0);
    for (tenant, status, code) in [("a", 429, "tenant_queue_full"), ("c", 503, "queue_full")] {
        let refused = send(&routed, tenant, "refused", &prompt("refused", 10)).reply();
        let found = (refused.status, refused.error_code());
        assert_eq!(found, (status, code.to_owned()), "{tenant}");
        assert_eq!(refused.header("retry-after"), Some("1"), "{tenant}");
    }
    assert_eq!(queued(&routed), json!([1, 1, 0]));
}

#[test]
#[contract("V32")]
fn the_tenant_that_had_less_is_next_and_a_higher_priority_comes_before_that() {
    let yaml = "api_keys:\n- {name: a, key: sk-a}\n- {name: b, key: sk-b, weight: 2}\n- {name: c, key: sk-c, priority: 5}\n";
    let routed = RoutedFleet::with(&[SLOW], yaml, &[]);
    let long = occupy(&routed, "a");
    // Without tenants the shortest would be first.
    let requests = [("a", 1_000), ("b", 3_000), ("c", 5_000)];
    let mut clients: Vec<RawClient> = requests
        .iter()
        .zip(1u8..)
        .map(|((tenant, words), count)| {
            let client = send(&routed, tenant, tenant, &prompt(tenant, *words));
            waiting(&routed, f64::from(count));
            client
        })
        .collect();
    drop(long);
    let held = |id: &str| {
        let receipt = eventually("the receipt", || {
            let receipt = routed.router.receipt(id);
            (!receipt["outcome"].is_null()).then_some(receipt)
        });
        let at = receipt["at"].as_str().expect("a time").to_owned();
        (at, receipt["priority"].clone())
    };
    for client in &mut clients {
        assert_eq!(client.reply().status, 200);
    }
    // Receipts are of the first token; times of RFC 3339 in the same form sort as texts.
    let [a, b, c] = ["a", "b", "c"].map(held);
    assert!(c.0 < b.0 && b.0 < a.0, "{c:?}, {b:?}, {a:?}");
    assert_eq!((a.1, c.1), (json!(0), json!(5)));
}
