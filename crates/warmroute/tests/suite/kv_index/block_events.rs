//! Events of blocks over ZMQ, by their effect, in the families that prefix streams move too.

use contract_id::contract;
use test_programs::ReservedPort;

use super::page;
use crate::{
    event_publisher::{EventPublisher, blocks},
    harness::{
        Page, Program, RawClient, RoutedFleet, RouterQueries as _, chat_message, eventually, words,
    },
};

const TYPES: [&str; 5] = ["created", "evicted", "offloaded", "reloaded", "purged"];

/// The events of engine `a`, in the order of [`TYPES`].
fn events(page: &Page) -> [f64; 5] {
    TYPES.map(|kind| {
        page.value(
            "continuum_kv_index_events_total",
            &[("backend", "a"), ("type", kind)],
        )
    })
}

/// All store events of engine `a`.
fn stored(page: &Page) -> f64 {
    page.value(
        "warmroute_kv_events_total",
        &[("worker", "a"), ("kind", "stored")],
    )
}

#[test]
#[contract("CK71")]
fn blocks_that_move_between_tiers_count_as_offloaded_and_reloaded() {
    // The device takes one prompt and a part of the next one.
    let routed = RoutedFleet::start(&[&["--kv-blocks", "48", "--host-blocks", "1000"]]);
    let chat = |topic: &str| routed.chat(&[chat_message("user", &words(topic, 60))], &[]);
    chat("first");
    let [created, rest @ ..] = events(&page(&routed.router));
    assert!(created > 0.0 && rest == [0.0; 4], "{created} {rest:?}");

    for topic in ["one", "two", "three", "four"] {
        chat(topic);
    }
    let seen = page(&routed.router);
    let [created, evicted, offloaded, reloaded, purged] = events(&seen);
    assert!(
        offloaded > 0.0 && evicted > 0.0,
        "{offloaded} offloaded, {evicted} evicted"
    );
    // What all prompts begin with may be evicted and computed anew.
    assert_eq!(created + offloaded + reloaded, stored(&seen));
    assert_eq!(purged, 0.0);

    let back = chat("first");
    assert!(back.cached > 0, "from host memory: {back:?}");
    let seen = page(&routed.router);
    let [created, _, offloaded, again, _] = events(&seen);
    assert!(again > reloaded, "{again} after {reloaded}");
    assert_eq!(created + offloaded + again, stored(&seen));
}

#[test]
#[contract("CK70", "CK71")]
fn a_reset_cache_counts_as_purged_and_a_restarted_engine_as_reconnected() {
    let mut routed = RoutedFleet::start(&[&[]]);
    let prompt = [chat_message("user", &words("gone", 60))];
    routed.chat(&prompt, &[]);
    let reset = RawClient::post(&routed.engines[0].data(), "/reset_prefix_cache", b"");
    assert_eq!(reset.json()["success"], true);
    // The engine announces the reset with the events of its next step.
    routed.chat(&[chat_message("user", "hi")], &[]);
    assert_eq!(events(&page(&routed.router))[4], 1.0);

    let of = |name: &str| page(&routed.router).value(name, &[("backend", "a")]);
    assert_eq!(of("continuum_kv_consumer_connected"), 1.0);
    assert_eq!(of("continuum_kv_consumer_reconnects_total"), 0.0);
    let ready = routed.engines[0].ready.clone();
    let address = |key: &str| ready[key][0].as_str().expect("an address").to_owned();
    let (port, events, replay) = (
        routed.engines[0]
            .data()
            .rsplit(':')
            .next()
            .unwrap()
            .to_owned(),
        address("kv_events"),
        address("replay"),
    );
    routed.engines[0].kill();
    let flags = ["--port", &port, "--kv-events", &events, "--replay", &replay];
    routed.engines[0] = Program::engine(&flags);
    eventually("the stream to be connected again", || {
        let page = page(&routed.router);
        let of = |name: &str| page.value(name, &[("backend", "a")]);
        (of("continuum_kv_consumer_connected") == 1.0
            && of("continuum_kv_consumer_reconnects_total") >= 1.0)
            .then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
#[contract("CK70", "CK71")]
async fn events_of_a_publisher_in_quarantine_count_as_dropped() {
    let engine = Program::engine(&["--no-kv-events"]);
    let socket = ReservedPort::new();
    let endpoint = format!("tcp://{}", socket.address());
    let config = format!(
        "workers:\n  - {{name: a, url: \"{}\", kv_events: {{bind: true, endpoint: \"{endpoint}\"}}}}\n",
        engine.url()
    );
    let router = Program::serve_with(&config, &[], &[]).ready(1);
    let mut publisher = EventPublisher::connected(&endpoint).await;
    let topic = "kv@a@sim";
    let tokens: Vec<u32> = (1..=16).collect();
    let block = [blocks(0, 0, &tokens, "GPU")];
    let counts = || {
        let page = page(&router);
        ["received", "processed", "dropped"].map(|name| {
            let name = format!("continuum_kv_event_{name}_total");
            page.value(&name, &[("backend", "a")])
        })
    };
    publisher.publish_under(topic, &block);
    eventually("the event", || (counts() == [1.0, 1.0, 0.0]).then_some(()));
    // A hundred unreadable batches within ten seconds.
    eventually("the quarantine", || {
        for _ in 0..100 {
            publisher.publish_payload(topic, b"no batch");
        }
        let labels = [("backend", "a"), ("status", "quarantined")];
        let name = "continuum_kv_index_event_source_status";
        (page(&router).value(name, &labels) == 1.0).then_some(())
    });
    // More of them may be on the way, and count as dropped as well.
    let [received, processed, dropped] = counts();
    for _ in 0..5 {
        publisher.publish_under(topic, &block);
    }
    let after = eventually("the dropped events", || {
        let after = counts();
        (after[2] >= dropped + 5.0).then_some(after)
    });
    assert_eq!(after[1], processed, "none of them was applied");
    assert_eq!(after[0] - received, after[2] - dropped, "all were received");
}
