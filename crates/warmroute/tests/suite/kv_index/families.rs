//! The `continuum_kv_*` families.

use contract_id::contract;
use serde_json::json;

use super::{get, page, routed};
use crate::{
    harness::{Page, RawClient, RoutedFleet, chat_message, eventually, words},
    prefix_stream::PrefixStream,
};

const STATUSES: [&str; 6] = [
    "connecting",
    "replaying",
    "live",
    "gapped",
    "stale",
    "quarantined",
];
const TYPES: [&str; 5] = ["created", "evicted", "offloaded", "reloaded", "purged"];
/// Counters with `backend` as their only label.
const BY_BACKEND: [&str; 4] = [
    "continuum_kv_event_received_total",
    "continuum_kv_event_processed_total",
    "continuum_kv_event_dropped_total",
    "continuum_kv_consumer_reconnects_total",
];

/// One backend's events of all five types, in the order of [`TYPES`].
fn events(page: &Page, backend: &str) -> [f64; 5] {
    TYPES.map(|kind| {
        page.value(
            "continuum_kv_index_events_total",
            &[("backend", backend), ("type", kind)],
        )
    })
}

fn of(page: &Page, name: &str, backend: &str) -> f64 {
    page.value(name, &[("backend", backend)])
}

/// The current status of a backend's stream.
fn status(page: &Page, backend: &str) -> String {
    let value = |status: &str| {
        page.value(
            "continuum_kv_index_event_source_status",
            &[("backend", backend), ("status", status)],
        )
    };
    let current: Vec<&str> = STATUSES
        .into_iter()
        .filter(|status| value(status) == 1.0)
        .collect();
    assert_eq!(
        STATUSES.iter().map(|status| value(status)).sum::<f64>(),
        1.0,
        "{backend} is in one: {current:?}"
    );
    current[0].to_owned()
}

#[test]
#[contract("CK70", "CK71", "CK72")]
fn every_label_combination_is_present_and_0_at_the_start() {
    let stream = PrefixStream::start();
    let routed = routed(&stream, "");
    let page = page(&routed.router);
    for backend in ["a", "b"] {
        assert_eq!(
            BY_BACKEND.map(|name| of(&page, name, backend)),
            [0.0; 4],
            "{backend}"
        );
        assert_eq!(events(&page, backend), [0.0; 5], "{backend}");
        assert_eq!(
            of(&page, "continuum_kv_consumer_connected", backend),
            1.0,
            "{backend}"
        );
        assert_eq!(status(&page, backend), "live");
    }
    for decision in ["kv_aware", "fallback"] {
        assert_eq!(
            page.value(
                "continuum_kv_index_routing_decisions_total",
                &[("decision", decision)]
            ),
            0.0
        );
    }
    assert_eq!(page.value("continuum_kv_index_entries", &[]), 0.0);
    for histogram in [
        "continuum_kv_index_query_latency_seconds",
        "continuum_kv_index_overlap_score",
    ] {
        let buckets = format!("{histogram}_bucket");
        assert!(
            page.of(&buckets).count() > 5 && page.of(&buckets).all(|bucket| bucket.value == 0.0)
        );
    }
    let ends = page
        .of("continuum_kv_index_overlap_score_bucket")
        .map(|bucket| bucket.labels["le"].clone());
    assert_eq!(ends.last().as_deref(), Some("+Inf"));
    let ends = page
        .of("continuum_kv_index_overlap_score_bucket")
        .filter_map(|bucket| bucket.labels["le"].parse().ok());
    assert!(
        ends.filter(|end: &f64| end.is_finite())
            .all(|end| (0.0..=1.0).contains(&end)),
        "scores are 0 to 1"
    );
}

#[test]
#[contract("CK49", "CK55", "CK70", "CK71")]
fn events_of_a_prefix_stream_are_counted_by_backend_and_effect() {
    let stream = PrefixStream::start();
    let routed = routed(
        &stream,
        "  storage_offloading: {enabled: true, treat_eviction_as_offload: false}\n",
    );
    for (kind, prompt) in [
        ("cache_created", "one"),
        ("cache_created", "two"),
        ("cache_offloaded", "one"),
        ("cache_reloaded", "one"),
        ("cache_evicted", "two"),
        ("cache_created", "three"),
        ("cache_purged", "one"),
        // No target holds it, so the event has no effect.
        ("cache_evicted", "two"),
    ] {
        stream.publish(kind, prompt, 100);
    }
    let seen = eventually("the events to be counted", || {
        let page = page(&routed.router);
        (of(&page, "continuum_kv_event_received_total", "b") == 8.0).then_some(page)
    });
    assert_eq!(events(&seen, "b"), [3.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(of(&seen, "continuum_kv_event_processed_total", "b"), 7.0);
    assert_eq!(
        seen.value("continuum_kv_index_entries", &[]),
        1.0,
        "the third entry is left"
    );
    assert_eq!(
        (
            events(&seen, "a"),
            of(&seen, "continuum_kv_event_received_total", "a")
        ),
        ([0.0; 5], 0.0)
    );

    // More than the size limit of a message.
    stream.publish("cache_created", "four", 100);
    stream.publish_raw(&format!(
        "event: cache_created\ndata: {}\n\n",
        "x".repeat((1 << 20) + 1)
    ));
    let seen = eventually("the long request to be cancelled", || {
        let page = page(&routed.router);
        (of(&page, "continuum_kv_event_dropped_total", "b") == 1.0).then_some(page)
    });
    assert_eq!(
        of(&seen, "continuum_kv_event_received_total", "b"),
        10.0,
        "dropped events are counted as received too"
    );
}

#[test]
#[contract("CK70", "CK71", "CK72")]
fn a_lost_and_restored_stream_shows_in_connected_status_and_reconnects() {
    let stream = PrefixStream::start();
    let routed = routed(&stream, "");
    stream.go_away();
    let gone = eventually("the loss to show", || {
        let page = page(&routed.router);
        (of(&page, "continuum_kv_consumer_connected", "b") == 0.0).then_some(page)
    });
    assert_eq!(status(&gone, "b"), "connecting");
    assert_eq!(of(&gone, "continuum_kv_consumer_connected", "a"), 1.0);
    stream.come_back();
    let back = eventually("the stream to be back", || {
        let page = page(&routed.router);
        (of(&page, "continuum_kv_consumer_connected", "b") == 1.0).then_some(page)
    });
    assert_eq!(
        of(&back, "continuum_kv_consumer_reconnects_total", "b"),
        1.0
    );
    assert_eq!(
        (
            status(&back, "b").as_str(),
            of(&back, "continuum_kv_consumer_reconnects_total", "a")
        ),
        ("live", 0.0)
    );
}

#[test]
#[contract("CK70", "CK71")]
fn the_same_families_count_engines_that_publish_blocks_over_zmq() {
    let mut routed = RoutedFleet::start(&[&[], &[]]);
    let messages = [chat_message("user", &words("zmq", 80))];
    let first = routed.chat(&messages, &[]);
    let second = routed.chat(&messages, &[]);
    assert_eq!(first.worker, second.worker, "where it is cached");
    let (worker, other) = (&*first.worker, if first.worker == "a" { "b" } else { "a" });
    let seen = page(&routed.router);
    let of_stream: Vec<_> = routed
        .streams()
        .into_iter()
        .filter(|stream| stream["worker"] == worker)
        .collect();
    let count_of = |count: &str| of_stream[0]["counts"][count].as_f64().unwrap();
    assert_eq!(
        of(&seen, "continuum_kv_event_received_total", worker),
        count_of("events")
    );
    assert_eq!(
        of(&seen, "continuum_kv_event_processed_total", worker),
        count_of("applied")
    );
    let stored = seen.value(
        "warmroute_kv_events_total",
        &[("worker", worker), ("kind", "stored")],
    );
    assert!(
        stored > 0.0 && events(&seen, worker)[0] == stored,
        "{:?}",
        events(&seen, worker)
    );
    assert_eq!(events(&seen, other), [0.0; 5]);
    assert_eq!(of(&seen, "continuum_kv_consumer_connected", worker), 1.0);
    let memberships = seen.value("warmroute_index_memberships", &[]);
    assert!(memberships > 0.0 && seen.value("continuum_kv_index_entries", &[]) == memberships);
    // The first prompt was cached nowhere; most of the second was cached at its target.
    let decided = |decision| {
        seen.value(
            "continuum_kv_index_routing_decisions_total",
            &[("decision", decision)],
        )
    };
    assert_eq!((decided("kv_aware"), decided("fallback")), (1.0, 1.0));
    assert_eq!(
        seen.value("continuum_kv_index_query_latency_seconds_count", &[]),
        2.0
    );
    assert_eq!(
        seen.value("continuum_kv_index_overlap_score_count", &[]),
        1.0
    );
    assert!(seen.value("continuum_kv_index_overlap_score_sum", &[]) > 0.8);

    // The events of a backend end with it.
    let killed = if worker == "a" { 0 } else { 1 };
    routed.engines[killed].kill();
    eventually("the loss to show", || {
        let page = page(&routed.router);
        (of(&page, "continuum_kv_consumer_connected", worker) == 0.0).then_some(())
    });
}

#[test]
#[contract("CK63", "CK71")]
fn a_decision_by_the_prefix_view_counts_the_query_the_decision_and_the_overlap() {
    let stream = PrefixStream::start();
    let routed = routed(&stream, "");
    let prompt = words("held", 60);
    stream.publish("cache_created", &prompt, 4_000);
    eventually("the event", || {
        (get(&routed.router, "/admin/kv-index/stats")["index"]["entry_count"] == 1).then_some(())
    });
    let send = |system: &str| {
        let body = json!({"model": "sim", "messages": [chat_message("system", system), chat_message("user", "hi")], "max_tokens": 1});
        let reply = RawClient::chat(&routed.router.data(), &body).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.header("x-warmroute-worker").unwrap().to_owned()
    };
    assert_eq!(send(&prompt), "b");
    send("nobody holds this");
    let seen = page(&routed.router);
    let decided = |decision| {
        seen.value(
            "continuum_kv_index_routing_decisions_total",
            &[("decision", decision)],
        )
    };
    assert_eq!((decided("kv_aware"), decided("fallback")), (1.0, 1.0));
    assert_eq!(
        seen.value("continuum_kv_index_query_latency_seconds_count", &[]),
        2.0
    );
    let overlap =
        |suffix: &str| seen.value(&format!("continuum_kv_index_overlap_score_{suffix}"), &[]);
    assert_eq!(
        (overlap("count"), overlap("sum")),
        (1.0, 1.0),
        "it holds more than the prompt has"
    );
}
