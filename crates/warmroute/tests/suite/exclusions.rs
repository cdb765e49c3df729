//! Workers that a request cannot use, and the reasons that its receipt gives.

use std::collections::BTreeMap;

use serde_json::json;

use crate::harness::{RoutedFleet, RoutedReply};

/// The reasons of the receipt by worker.
fn excluded(routed: &RoutedFleet, reply: &RoutedReply) -> BTreeMap<String, String> {
    let receipt = routed.receipt(reply);
    let rows = receipt["excluded"].as_array().expect("a list").iter();
    rows.map(|row| {
        let text = |pointer: &str| {
            let value = row.pointer(pointer).and_then(|value| value.as_str());
            value.expect("a text").to_owned()
        };
        (text("/target/worker"), text("/reason"))
    })
    .collect()
}

fn reasons(rows: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(worker, reason): &(&str, &str)| ((*worker).to_owned(), (*reason).to_owned());
    rows.iter().map(owned).collect()
}

#[test]
fn a_receipt_names_the_workers_that_lack_the_model_the_adapter_or_the_context() {
    let short: &[&str] = &["--loras", "ad1", "--max-model-len", "64"];
    let routed = RoutedFleet::start(&[short, &[], &["--model", "other"]]);
    let to_adapter = routed.completion(json!({"model": "ad1", "prompt": "hi"}), &[]);
    assert_eq!(to_adapter.worker, "a");
    assert_eq!(
        excluded(&routed, &to_adapter),
        reasons(&[("b", "lora"), ("c", "model")])
    );

    let ids: Vec<u32> = (1000..1100).collect();
    for _ in 0..4 {
        let long = routed.completion(json!({"prompt": ids}), &[]);
        assert_eq!(long.worker, "b");
        assert_eq!(
            excluded(&routed, &long),
            reasons(&[("a", "context_too_long"), ("c", "model")])
        );
    }
}
