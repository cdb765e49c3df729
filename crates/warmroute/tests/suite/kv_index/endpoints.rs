//! `/admin/kv-index/stats`, `/backends` and `/clear`, in the documented shapes.

use contract_id::contract;
use serde_json::{Value, json};

use super::{get, routed};
use crate::{
    harness::{RawClient, RoutedFleet, assert_shape, chat_message, eventually, words},
    prefix_stream::PrefixStream,
};

/// The keys of an object, sorted.
fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

fn stats(routed: &RoutedFleet) -> Value {
    get(&routed.router, "/admin/kv-index/stats")
}

fn until_entries(routed: &RoutedFleet, entries: u64) {
    eventually("the prefix view to follow", || {
        (stats(routed)["index"]["entry_count"] == entries).then_some(())
    });
}

#[test]
#[contract("CK76")]
fn the_stats_have_the_documented_keys_and_types_and_correct_figures() {
    let stream = PrefixStream::start();
    let routed = routed(
        &stream,
        "  max_entries: 5000\n  entry_ttl_seconds: 60\n  scoring: {min_overlap_threshold: 0.25}\n",
    );
    let template = json!({
        "enabled": "bool",
        "config": {
            "backend": "string", "max_entries": "int", "entry_ttl_seconds": "int", "event_sources_count": "int",
            "scoring": {
                "overlap_weight": "number", "load_weight": "number", "health_weight": "number",
                "min_overlap_threshold": "number",
            },
        },
        "index": {"prefix_count": "int", "entry_count": "int", "total_hits": "int", "total_evictions": "int"},
        "event_sources": [{
            "backend_name": "string", "connected": "bool", "events_received": "int", "events_dropped": "int",
            "last_event_at": "null|time", "reconnect_count": "int", "events_per_second": "number",
        }],
        "routing_decisions": {"kv_aware": "int", "fallback": "int", "total": "int"},
        "query_latency_count": "int",
        "overlap_score_count": "int",
        "overlap_scores": {"mean": "null|number", "distribution": [{"up_to": "number", "count": "int"}]},
    });
    let before = stats(&routed);
    assert_shape(&before, &template);
    assert_eq!(
        (
            &before["event_sources"][0]["last_event_at"],
            &before["overlap_scores"]["mean"]
        ),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        before["config"],
        json!({
            "backend": "memory", "max_entries": 5000, "entry_ttl_seconds": 60, "event_sources_count": 1,
            "scoring": {"overlap_weight": 0.6, "load_weight": 0.3, "health_weight": 0.1, "min_overlap_threshold": 0.25},
        })
    );

    let (held, unknown) = (words("held", 60), words("unknown", 60));
    stream.publish("cache_created", &held, 4_000);
    stream.publish("cache_created", "something else", 7);
    until_entries(&routed, 2);
    let send = |system: &str| {
        routed
            .chat(
                &[chat_message("system", system), chat_message("user", "hi")],
                &[],
            )
            .worker
    };
    assert_eq!(send(&held), "b");
    send(&unknown);
    let after = stats(&routed);
    assert_shape(&after, &template);
    assert_eq!(
        after["index"],
        json!({"prefix_count": 2, "entry_count": 2, "total_hits": 1, "total_evictions": 0})
    );
    assert_eq!(
        after["routing_decisions"],
        json!({"kv_aware": 1, "fallback": 1, "total": 2})
    );
    assert_eq!(
        [&after["query_latency_count"], &after["overlap_score_count"]],
        [&json!(2), &json!(1)]
    );
    let source = &after["event_sources"][0];
    assert_eq!(
        (&source["backend_name"], &source["connected"]),
        (&json!("b"), &json!(true))
    );
    assert_eq!(
        (
            &source["events_received"],
            &source["events_dropped"],
            &source["reconnect_count"]
        ),
        (&json!(2), &json!(0), &json!(0))
    );
    assert_eq!(
        source["events_per_second"],
        2.0 / 60.0,
        "two in the last minute"
    );
    let scores = &after["overlap_scores"];
    assert_eq!(scores["mean"], 1.0);
    let distribution = scores["distribution"].as_array().unwrap();
    assert_eq!(
        (distribution.len(), &distribution[9]),
        (10, &json!({"up_to": 1.0, "count": 1}))
    );
    assert!(
        distribution[..9].iter().all(|range| range["count"] == 0),
        "{scores}"
    );
}

#[test]
#[contract("CK77")]
fn each_backend_is_listed_with_its_connection_its_events_and_its_entries_by_tier() {
    let stream = PrefixStream::start();
    let routed = routed(&stream, "  storage_offloading: {enabled: true}\n");
    let backends = || get(&routed.router, "/admin/kv-index/backends");
    for (kind, prompt) in [
        ("cache_created", "one"),
        ("cache_created", "two"),
        ("cache_created", "three"),
        ("cache_offloaded", "one"),
        // The default role of this backend is offload.
        ("cache_evicted", "two"),
        ("cache_purged", "four"),
    ] {
        stream.publish(kind, prompt, 100);
    }
    let body = eventually("the events to be reported", || {
        let body = backends();
        (body["backends"][0]["events"]["received"] == 6).then_some(body)
    });
    assert_shape(
        &body,
        &json!({
            "enabled": "bool",
            "backends": [{
                "backend_name": "string",
                "connection": {"connected": "bool", "reconnect_count": "int", "last_event_at": "null|time"},
                "events": {"received": "int", "processed": "int", "dropped": "int", "index_created": "int", "index_evicted": "int"},
                "held": {"gpu_hot": "int", "storage_warm": "int"},
            }],
        }),
    );
    let backend = &body["backends"][0];
    assert_eq!(
        (&body["enabled"], &backend["backend_name"]),
        (&json!(true), &json!("b"))
    );
    assert_eq!(
        backend["events"],
        json!({"received": 6, "processed": 5, "dropped": 0, "index_created": 3, "index_evicted": 1}),
        "no target held the last one"
    );
    assert_eq!(backend["held"], json!({"gpu_hot": 1, "storage_warm": 2}));
    let connection = &backend["connection"];
    assert_eq!(
        (&connection["connected"], &connection["reconnect_count"]),
        (&json!(true), &json!(0))
    );
    assert!(connection["last_event_at"].is_string());
}

#[test]
#[contract("CK78", "CK84", "A10")]
fn a_clear_reports_the_removed_entries_and_events_refill_the_index() {
    let stream = PrefixStream::start();
    let routed = routed(&stream, "");
    let clear = || RawClient::post(&routed.router.admin(), "/admin/kv-index/clear", b"").json();
    for prompt in ["one", "two", "three"] {
        stream.publish("cache_created", prompt, 100);
    }
    until_entries(&routed, 3);
    let cleared = clear();
    assert_eq!(
        keys(&cleared),
        ["cleared_entries", "entries_before_clear", "success"]
    );
    assert_eq!(
        cleared,
        json!({"success": true, "entries_before_clear": 3, "cleared_entries": 3})
    );
    assert_eq!(stats(&routed)["index"]["entry_count"], 0);
    assert_eq!(
        clear(),
        json!({"success": true, "entries_before_clear": 0, "cleared_entries": 0})
    );
    stream.publish("cache_created", "two", 100);
    until_entries(&routed, 1);
}
