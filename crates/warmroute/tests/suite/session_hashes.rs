//! What the hash policies hash: the request's key and the worker's identity.

use std::collections::BTreeSet;

use contract_id::contract;
use serde_json::json;

use crate::harness::{Program, RawClient, RoutedFleet, RouterQueries, words};

#[test]
#[contract("V25")]
fn requests_without_any_session_go_by_the_hash_of_their_body() {
    for policy in ["rendezvous_hash", "consistent_hash"] {
        let routed = RoutedFleet::with(&[&[], &[], &[]], "", &["--policy", policy]);
        // The bodies have the same beginning, longer than a prefix key covers.
        let beginning = words("common", 200);
        let home = |number: u32| {
            let body = json!({"prompt": format!("{beginning} {number}")});
            let turns: Vec<_> = (0..3)
                .map(|_| routed.completion(body.clone(), &[]))
                .collect();
            let homes: BTreeSet<&str> = turns.iter().map(|turn| &*turn.worker).collect();
            assert_eq!(homes.len(), 1, "{policy}: equal bodies go to {homes:?}");
            turns[0].worker.clone()
        };
        let homes: BTreeSet<String> = (0..12).map(home).collect();
        assert!(homes.len() > 1, "{policy}: twelve bodies go to {homes:?}");
    }
}

#[test]
#[contract("V24")]
fn a_worker_without_a_name_is_hashed_by_the_host_and_port_of_its_url() {
    let engines = [(); 3].map(|()| Program::engine(&["--no-kv-events", "--speed", "20"]));
    let urls: Vec<String> = engines.iter().map(Program::url).collect();
    let homes = |workers: &[String]| -> Vec<String> {
        let router = Program::serve(workers, &["--policy", "rendezvous_hash"]).ready(3);
        let home = |n: u32| {
            let headers = [("x-session-id", format!("session-{n}"))];
            let headers = headers
                .each_ref()
                .map(|(name, value)| (*name, value.as_str()));
            let body = json!({"model": "sim", "prompt": "hello", "max_tokens": 1}).to_string();
            let path = "/v1/completions";
            let reply = RawClient::post_with(&router.data(), path, &headers, body.as_bytes());
            reply
                .header("x-warmroute-worker")
                .expect("a worker")
                .to_owned()
        };
        (0..24).map(home).collect()
    };
    let by_url = homes(&urls);
    assert!(
        by_url.iter().collect::<BTreeSet<_>>().len() > 1,
        "{by_url:?}"
    );
    // The same names written out, in another order.
    let named: Vec<String> = urls
        .iter()
        .rev()
        .map(|url| format!("{}={url}", url.trim_start_matches("http://")))
        .collect();
    assert_eq!(homes(&named), by_url);
    // A name that stays with a session's worker keeps its sessions, whatever its URL is.
    let rotated: Vec<String> = (0..3)
        .map(|n| {
            format!(
                "{}={}",
                urls[n].trim_start_matches("http://"),
                urls[(n + 1) % 3]
            )
        })
        .collect();
    assert_eq!(homes(&rotated), by_url);
}
