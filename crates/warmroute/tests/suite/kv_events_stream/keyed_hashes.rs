//! What the hashes of tenants' blocks tell an operator about their tokens.

use std::collections::BTreeSet;

use contract_id::contract;
use kv_blocks::{BlockSize, HashScheme, SequenceHash};
use serde_json::{Value, json};

use super::subscriber::Subscriber;
use crate::harness::{RawClient, RoutedFleet};

/// Two tenants that have both sent a prompt of these tokens.
fn after_requests(isolation: &str, tokens: &[u32]) -> RoutedFleet {
    let config = format!(
        "tenants:\n  isolation: {isolation}\n  api_keys:\n  - {{name: a, key: sk-a}}\n  - {{name: b, key: sk-b}}\n"
    );
    let routed = RoutedFleet::with(&[&[]], &config, &[]);
    let body = json!({"model": "sim", "prompt": tokens, "max_tokens": 1}).to_string();
    for key in ["sk-a", "sk-b"] {
        let (data, headers) = (routed.router.data(), [("x-api-key", key)]);
        let reply = RawClient::post_with(&data, "/v1/completions", &headers, body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        routed.caught_up();
    }
    routed
}

/// The current state as the stream tells it.
fn streamed(routed: &RoutedFleet, query: &str) -> String {
    let events = Subscriber::new(&routed.router, query).until("snapshot_end");
    events.iter().map(|event| event.data.to_string()).collect()
}

fn hashes_of(dump: &str) -> BTreeSet<String> {
    dump.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|row| row["hash"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
#[contract("S57")]
fn a_guess_of_tokens_is_found_in_no_hash_of_a_salted_block() {
    let tokens: Vec<u32> = (1000..1100).collect();
    let size = BlockSize::new(16).unwrap();
    let guessed: Vec<SequenceHash> = HashScheme::default().chain(None, &tokens, size);
    assert_eq!(guessed.len(), 6);
    for (isolation, is_found, blocks) in [("salted", false, 12), ("shared", true, 6)] {
        let routed = after_requests(isolation, &tokens);
        let dump = RawClient::get(&routed.router.admin(), "/admin/kv-index/dump").text();
        let events = streamed(&routed, "?snapshot=true");
        let envelopes = streamed(&routed, "?snapshot=true&format=rfc1527");
        let shown = hashes_of(&dump);
        // Under a salt two tenants' blocks of equal tokens have nothing in common either.
        assert_eq!(shown.len(), blocks, "{isolation}: {dump}");
        for hash in &shown {
            assert!(events.contains(hash), "{isolation}: {hash}: {events}");
        }
        for hash in &guessed {
            let (hex, number) = (hash.to_string(), hash.0.to_string());
            let found = [
                dump.contains(&hex),
                events.contains(&hex),
                envelopes.contains(&number),
            ];
            assert_eq!(found, [is_found; 3], "{isolation}: {hash}");
        }
        for text in [&dump, &events, &envelopes] {
            assert!(!text.contains("1001,1002"), "token ids: {text}");
        }
    }
}
