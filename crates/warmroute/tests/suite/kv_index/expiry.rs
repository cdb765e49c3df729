//! Expired entries of the prefix view, in a router without requests.

use contract_id::contract;

use super::{get, page, routed};
use crate::{harness::eventually, prefix_stream::PrefixStream};

#[test]
#[contract("CK51")]
fn the_running_router_removes_expired_entries_that_nothing_looks_up() {
    let stream = PrefixStream::start();
    let routed = routed(&stream, "  entry_ttl_seconds: 1\n");
    for prompt in ["one", "two", "three"] {
        stream.publish("cache_created", prompt, 100);
    }
    let entries = || page(&routed.router).value("continuum_kv_index_entries", &[]);
    let created = || {
        page(&routed.router).value(
            "continuum_kv_index_events_total",
            &[("backend", "b"), ("type", "created")],
        )
    };
    eventually("the events", || (created() == 3.0).then_some(()));
    // No request is sent: a query, which applies the lifetime too, never happens.
    eventually("the sweep", || (entries() == 0.0).then_some(()));
    let stats = get(&routed.router, "/admin/kv-index/stats");
    assert_eq!(stats["index"]["entry_count"], 0);
    assert_eq!(stats["query_latency_count"], 0);
}
