//! A reader that stops reading.

use serde_json::json;

use super::subscriber::{Subscriber, connected};
use crate::harness::{RawClient, RoutedFleet, RouterQueries, eventually};

#[test]
fn a_reader_that_stops_is_cut_and_memory_stays_bounded() {
    // Blocks of one token and room for one prompt: each request stores and evicts thousands.
    let routed = RoutedFleet::start(&[&[
        "--block-size",
        "1",
        "--kv-blocks",
        "8192",
        "--max-model-len",
        "8192",
    ]]);
    let fill = |n: u32| {
        let prompt: Vec<u32> = (0..8000).map(|at| (at * 7 + n) % 200).collect();
        let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1}).to_string();
        let reply = RawClient::post(&routed.router.data(), "/v1/completions", body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        // Only an applied change is one that a reader can miss.
        routed.caught_up();
    };
    (0..4).for_each(fill);
    let before = routed.router.resident();
    let stopped = connected(&routed.router, "");
    // The router keeps 16 MiB of changes, and some megabytes wait in sockets.
    (0..30).for_each(fill);
    let grown = routed.router.resident().saturating_sub(before);
    assert!(grown < 96 << 20, "{grown} bytes for one that does not read");
    let late = Subscriber::reading(stopped);
    let clean = eventually("the end of the stalled subscriber", || late.ended());
    // After half a minute without reading, as on a slow machine, the subscriber is already gone.
    let last = late.events().pop().unwrap();
    assert_eq!(last.name == "lagged", clean, "{last:?}");
    assert!(!clean || last.data["lost"].as_u64() > Some(0), "{last:?}");
}
