//! The index of KV events for operators: its metric families, its admin endpoints, and that no
//! request depends on it.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../prefix_stream/mod.rs"]
mod prefix_stream;

mod endpoints;
mod families;
mod optional;
mod sizing;

use harness::{Page, Program, RawClient, RoutedFleet};
use prefix_stream::PrefixStream;
use serde_json::Value;

/// Two engines, `b` with a stream of prefixes beside its own events.
pub(crate) fn routed(stream: &PrefixStream, more: &str) -> RoutedFleet {
    let config = format!(
        "prefix_routing: {{enabled: true}}\nkv_cache_index:\n  enabled: true\n  event_sources:\n    - {{backend_name: b, \
         endpoint: \"{}\", reconnect_interval_ms: 100}}\n{more}",
        stream.url()
    );
    RoutedFleet::with(&[&[], &[]], &config, &[])
}

pub(crate) fn page(router: &Program) -> Page {
    Page::read(&RawClient::get(&router.admin(), "/metrics").text())
}

pub(crate) fn get(router: &Program, path: &str) -> Value {
    RawClient::get(&router.admin(), path).json()
}
