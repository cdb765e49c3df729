//! A router that restarts with its prefix view in memory.

use contract_id::contract;

use super::{get, routed_to_silent};
use crate::{
    harness::{RoutedFleet, chat_message, eventually, words},
    prefix_stream::PrefixStream,
};

/// Entries of the view, once its stream is connected.
fn entries(routed: &RoutedFleet) -> Option<u64> {
    let stats = get(&routed.router, "/admin/kv-index/stats");
    let connected = stats["event_sources"][0]["connected"] == true;
    connected.then(|| stats["index"]["entry_count"].as_u64().expect("a count"))
}

fn until_entries(routed: &RoutedFleet, expected: u64) {
    eventually("the prefix view to follow", || {
        (entries(routed) == Some(expected)).then_some(())
    });
}

#[test]
#[contract("CK84")]
fn a_restarted_router_has_an_empty_view_and_fills_it_from_its_stream() {
    let stream = PrefixStream::start();
    let mut routed = routed_to_silent(&stream);
    let ask = |routed: &RoutedFleet, system: &str| {
        let messages = [chat_message("system", system), chat_message("user", "hi")];
        routed.chat(&messages, &[]).worker
    };
    // A prompt that the ring does not send to `b`, so that only the view can.
    let prompt = (0..20)
        .map(|n| words(&format!("topic{n}x"), 40))
        .find(|prompt| ask(&routed, prompt) != "b")
        .expect("a ring has more than one owner");
    // An answer of the view is used for 100 ms.
    let until_sent_to_b = |routed: &RoutedFleet| {
        eventually("the request to be sent to its holder", || {
            (ask(routed, &prompt) == "b").then_some(())
        });
    };
    stream.publish("cache_created", &prompt, 4_000);
    until_entries(&routed, 1);
    until_sent_to_b(&routed);

    routed.restart_router();
    until_entries(&routed, 0);
    assert_ne!(ask(&routed, &prompt), "b", "nothing was kept anywhere");

    stream.publish("cache_created", &prompt, 4_000);
    until_entries(&routed, 1);
    until_sent_to_b(&routed);
}
