//! The index of KV events for operators: its metric families, its admin endpoints, and that no
//! request depends on it.

mod block_events;
mod endpoints;
mod expiry;
mod families;
mod optional;
mod restart;
mod sizing;

use serde_json::Value;

use crate::{
    harness::{Page, Program, RawClient, RoutedFleet},
    prefix_stream::PrefixStream,
};

/// Two engines, `b` with a stream of prefixes beside its own events.
pub(crate) fn routed(stream: &PrefixStream, more: &str) -> RoutedFleet {
    routed_to(stream, more, &[])
}

/// Engines without KV events, so that only the view tells who has a prompt.
pub(crate) fn routed_to_silent(stream: &PrefixStream) -> RoutedFleet {
    routed_to(stream, "", &["--no-kv-events"])
}

fn routed_to(stream: &PrefixStream, more: &str, engine: &[&str]) -> RoutedFleet {
    let config = format!(
        "prefix_routing: {{enabled: true}}\nkv_cache_index:\n  enabled: true\n  event_sources:\n    - {{backend_name: b, \
         endpoint: \"{}\", reconnect_interval_ms: 100}}\n{more}",
        stream.url()
    );
    RoutedFleet::with(&[engine, engine], &config, &[])
}

pub(crate) fn page(router: &Program) -> Page {
    Page::read(&RawClient::get(&router.admin(), "/metrics").text())
}

pub(crate) fn get(router: &Program, path: &str) -> Value {
    RawClient::get(&router.admin(), path).json()
}
