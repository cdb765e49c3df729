//! The index is optional: its keys have defaults, its loss breaks nothing, and it is selected at
//! start.

use contract_id::contract;
use serde_json::json;

use super::{get, routed};
use crate::{
    harness::{RawClient, RoutedFleet, chat_message, eventually, words},
    prefix_stream::PrefixStream,
};

/// Sends a request that is routed by the index; returns its worker.
fn worker_for(routed: &RoutedFleet, system: &str) -> String {
    let body = json!({"model": "sim", "messages": [chat_message("system", system), chat_message("user", "hi")], "max_tokens": 1});
    let reply = RawClient::chat(&routed.router.data(), &body).reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.header("x-warmroute-worker").unwrap().to_owned()
}

#[test]
#[contract(
    "A2", "CH28", "CK40", "CK41", "CK42", "CK54", "CK56", "CK59", "CK60", "CK62"
)]
fn every_documented_key_has_its_documented_default() {
    let usual = RoutedFleet::start(&[&[]]);
    let config = get(&usual.router, "/admin/config");
    let index = &config["kv_cache_index"];
    assert_eq!(index["enabled"], false);
    assert_eq!(
        (&index["backend"], &index["event_sources"]),
        (&json!("memory"), &json!([]))
    );
    assert_eq!(
        (&index["max_entries"], &index["entry_ttl_seconds"]),
        (&json!(100_000), &json!(600))
    );
    assert_eq!(
        index["storage_offloading"],
        json!({"enabled": false, "treat_eviction_as_offload": true})
    );
    for (key, value) in [
        ("overlap_weight", 0.6),
        ("load_weight", 0.3),
        ("health_weight", 0.1),
        ("min_overlap_threshold", 0.3),
        ("gpu_tier_weight", 1.0),
        ("storage_tier_weight", 0.6),
    ] {
        assert_eq!(index["scoring"][key], value, "{key}");
    }
    let stream = PrefixStream::start();
    let source = format!(
        "kv_cache_index: {{enabled: true, event_sources: [{{backend_name: a, endpoint: \"{}\"}}]}}\n",
        stream.url()
    );
    let routed = RoutedFleet::with(&[&[]], &source, &[]);
    let source = get(&routed.router, "/admin/config")["kv_cache_index"]["event_sources"][0].clone();
    assert_eq!(source["reconnect_interval_ms"], 5000);
}

#[test]
#[contract("CH28", "CK65")]
fn requests_are_routed_without_the_index_and_without_its_streams() {
    let off = RoutedFleet::with(&[&[], &[]], "prefix_routing: {enabled: true}\n", &[]);
    let prompt = words("any", 60);
    let home = worker_for(&off, &prompt);
    let stats = get(&off.router, "/admin/kv-index/stats");
    assert_eq!(
        (&stats["enabled"], &stats["event_sources"]),
        (&json!(false), &json!([]))
    );
    assert_eq!(
        get(&off.router, "/admin/kv-index/backends"),
        json!({"enabled": false, "backends": []})
    );
    let refused = RawClient::post(&off.router.admin(), "/admin/kv-index/clear", b"");
    assert_eq!(
        (refused.status, refused.error_code().as_str()),
        (400, "invalid_request")
    );
    assert_eq!(worker_for(&off, &prompt), home);

    let stream = PrefixStream::start();
    let on = routed(&stream, "  entry_ttl_seconds: 1\n");
    eventually("the router to use the stream", || {
        // Again and again, as an entry lives for a second.
        stream.publish("cache_created", &prompt, 4_000);
        (worker_for(&on, &prompt) == "b").then_some(())
    });
    drop(stream);
    // Its entries stay valid for a second more; then the view is empty. No request fails meanwhile.
    let forgotten = || {
        worker_for(&on, &prompt);
        (get(&on.router, "/admin/kv-index/stats")["index"]["entry_count"] == 0).then_some(())
    };
    eventually("the entries of the stream to expire", forgotten);
    eventually("the decision by the ring", || {
        (worker_for(&on, &prompt) == home).then_some(())
    });
}

#[test]
#[contract("CH28")]
fn another_backend_takes_effect_at_the_next_start_and_a_reload_reports_it() {
    let stream = PrefixStream::start();
    let routed = routed(&stream, "");
    let file = routed.path("warmroute.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let changed = text.replace(
        "  enabled: true\n  event",
        "  enabled: true\n  backend: redis\n  event",
    );
    assert_ne!(text, changed);
    std::fs::write(
        &file,
        changed + "response_cache: {redis: {url: \"redis://127.0.0.1:1\"}}\n",
    )
    .unwrap();
    let reloaded = RawClient::post(
        &routed.router.admin(),
        "/admin/reload",
        b"{\"dry_run\": true}",
    )
    .json();
    let needed = reloaded["restart_needed"]
        .as_array()
        .unwrap_or_else(|| panic!("{reloaded}"));
    assert!(
        needed.contains(&json!("kv_cache_index.backend")),
        "{reloaded}"
    );
    let reloaded = RawClient::post(&routed.router.admin(), "/admin/reload", b"").json();
    assert_eq!(reloaded["problems"], json!([]), "{reloaded}");
    assert_eq!(
        get(&routed.router, "/admin/kv-index/stats")["config"]["backend"],
        "memory"
    );
    worker_for(&routed, "and goes on");
}
