//! The shape of events and of the snapshot.

use std::collections::BTreeSet;

use contract_id::contract;
use serde_json::{Value, json};

use super::subscriber::{Subscriber, SubscriberEvent};
use crate::harness::{RawClient, RoutedFleet, assert_shape, eventually, words};

fn complete(routed: &RoutedFleet, worker: &str, topic: &str) {
    routed.completion(
        json!({"prompt": words(topic, 150)}),
        &[("x-warmroute-worker", worker)],
    );
}

fn dump(routed: &RoutedFleet) -> Vec<Value> {
    let text = RawClient::get(&routed.router.admin(), "/admin/kv-index/dump").text();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn blocks_of(routed: &RoutedFleet, worker: &str) -> usize {
    dump(routed)
        .iter()
        .filter(|row| row["worker"] == worker)
        .count()
}

#[test]
#[contract("CK43", "CK44")]
fn events_of_a_requests_blocks_have_their_place_and_token_count() {
    let routed = RoutedFleet::start(&[&[]]);
    let subscriber = Subscriber::new(&routed.router, "");
    complete(&routed, "a", "told");
    let blocks = blocks_of(&routed, "a");
    assert!(blocks > 3);
    let events = eventually("every block to be announced", || {
        let events = subscriber.events();
        (events.len() >= blocks).then_some(events)
    });
    let template = json!({"event": "string", "backend": "string", "dp_rank": "int", "prefix_hash": "hex", "token_count": "int"});
    for (number, (event, row)) in events.iter().zip(dump(&routed)).enumerate() {
        assert_shape(&event.data, &template);
        assert_eq!(
            (event.id.as_deref(), &*event.name),
            (Some(&*format!("a/0/{number}")), "cache_created")
        );
        let block = json!({
            "event": "cache_created", "backend": "a", "dp_rank": 0, "prefix_hash": row["hash"],
            "token_count": (row["depth"].as_u64().unwrap() + 1) * 16,
        });
        assert_eq!(event.data, block);
    }
    assert_eq!(events.len(), blocks);
}

/// One engine whose blocks move to host memory, and one whose blocks do not.
fn two_tiers() -> RoutedFleet {
    let routed = RoutedFleet::start(&[&["--kv-blocks", "48", "--host-blocks", "1000"], &[]]);
    for topic in ["one", "two", "three", "four"] {
        complete(&routed, "a", topic);
        complete(&routed, "b", topic);
    }
    routed.completion(
        json!({"prompt": words("salted", 40), "cache_salt": "secret-salt"}),
        &[("x-warmroute-worker", "b")],
    );
    routed.caught_up();
    assert_ne!(routed.worker("a")["warm_blocks"]["host"], 0);
    routed
}

/// Each field of an object as text.
fn fields(of: &Value, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| of[*name].to_string()).collect()
}

#[test]
#[contract("MC8", "MC9")]
fn the_snapshot_in_envelopes_equals_the_dump() {
    let routed = two_tiers();
    let events =
        Subscriber::new(&routed.router, "?snapshot=true&format=rfc1527").until("snapshot_end");
    let end = events.last().unwrap();
    assert_eq!((&*end.name, &end.id), ("snapshot_end", &None));
    let mut announced = BTreeSet::new();
    let stored: Vec<&SubscriberEvent> = events
        .iter()
        .filter(|event| event.name == "cache_created")
        .collect();
    assert_eq!(stored.len(), events.len() - 1, "only existing blocks");
    for SubscriberEvent { data, .. } in &stored {
        assert_eq!(
            (&data["event_type"], &data["tenant_id"]),
            (&json!("stored"), &json!("default"))
        );
        let medium = match data["medium"].as_str().unwrap() {
            "gpu" => "device",
            "cpu" => "host",
            other => other,
        };
        let mut parent = data["parent_hash"].as_u64();
        for (at, hash) in data["seq_hashes"].as_array().unwrap().iter().enumerate() {
            let hex = |hash: u64| format!("{hash:016x}");
            let row = json!({
                "model": data["model_name"], "lora": data["lora_name"], "salt": data["additional_salt"],
                "block_size": data["block_size"], "worker": data["backend_id"], "dp_rank": data["dp_rank"],
                "tier": medium, "depth": data["base_block_idx"].as_u64().unwrap() + at as u64,
                "hash": hex(hash.as_u64().unwrap()), "parent": parent.map(hex),
            });
            assert!(announced.insert(row.to_string()), "announced twice: {row}");
            parent = hash.as_u64();
        }
    }
    let rows: BTreeSet<String> = dump(&routed).iter().map(Value::to_string).collect();
    assert_eq!(announced, rows);
    assert_eq!(end.data["blocks"], rows.len());
}

#[test]
fn the_snapshot_block_by_block_equals_the_dump() {
    let routed = two_tiers();
    let events = Subscriber::new(&routed.router, "?snapshot=true").until("snapshot_end");
    let of_kind = |kind: &str| -> BTreeSet<Vec<String>> {
        let events = events.iter().filter(|event| event.name == kind);
        events
            .map(|event| fields(&event.data, &["backend", "dp_rank", "prefix_hash"]))
            .collect()
    };
    let held = |device: bool| -> BTreeSet<Vec<String>> {
        let rows = dump(&routed)
            .into_iter()
            .filter(|row| !device || row["tier"] == "device");
        rows.map(|row| fields(&row, &["worker", "dp_rank", "hash"]))
            .collect()
    };
    assert_eq!(of_kind("cache_created"), held(false));
    // Blocks only in host memory were moved there.
    let moved: BTreeSet<_> = held(false).difference(&held(true)).cloned().collect();
    assert!(!moved.is_empty());
    assert_eq!(of_kind("cache_offloaded"), moved);
}

#[test]
fn a_stream_of_one_worker_has_only_that_workers_blocks() {
    let routed = RoutedFleet::start(&[&[], &[]]);
    complete(&routed, "a", "before");
    complete(&routed, "b", "before");
    let subscriber = Subscriber::new(&routed.router, "?worker=b&snapshot=true");
    subscriber.until("snapshot_end");
    complete(&routed, "a", "after");
    complete(&routed, "b", "after");
    let blocks = blocks_of(&routed, "b");
    let events = eventually("every block of the worker to be announced", || {
        let events = subscriber.events();
        (events.len() > blocks).then_some(events)
    });
    assert_eq!(events.len(), blocks + 1);
    assert!(
        events
            .iter()
            .all(|event| event.name == "snapshot_end" || event.data["backend"] == "b"),
        "{events:?}"
    );
}

#[test]
fn a_cleared_cache_sends_a_purge_and_a_full_one_sends_evictions() {
    let routed = RoutedFleet::start(&[&["--kv-blocks", "48"]]);
    let subscriber = Subscriber::new(&routed.router, "");
    for topic in ["one", "two", "three", "four"] {
        complete(&routed, "a", topic);
    }
    let full = subscriber.until("cache_evicted");
    assert!(
        full.iter().all(|event| event.name != "cache_purged"),
        "{full:?}"
    );
    let reset = RawClient::post(&routed.engines[0].data(), "/reset_prefix_cache", b"");
    assert_eq!(reset.status, 200);
    // The engine announces the reset with the events of its next step.
    complete(&routed, "a", "five");
    subscriber.until("cache_purged");
}
