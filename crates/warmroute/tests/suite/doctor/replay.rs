//! Replays that are off or requested at a wrong endpoint.

use contract_id::contract;

use super::look::{endpoint_of, engine, look_at, look_with};

#[test]
#[contract("G28")]
fn the_engine_offers_no_replay() {
    let engine = engine(&["--no-replay"]);
    let there = endpoint_of(&engine, "kv_events");
    let events: u16 = there
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok())
        .expect("a port");
    let fix = "start the engine with \"replay_endpoint\": \"tcp://*:{port}\" in the engine's --kv-events-config, or set \
               workers[0].kv_events.replay_endpoint to where it is";
    look_at(&engine, &[]).fails(
        &["w1"],
        "replay",
        fix,
        &[("port", &(events + 1).to_string())],
    );
}

#[test]
#[contract("G28")]
fn the_router_requests_no_replay() {
    let engine = engine(&[]);
    look_with(&engine, "", "kv_events: {replay: false}").fails(
        &["w1"],
        "replay",
        "set kv_events.replay: true",
        &[],
    );
    let fix = "set workers[0].kv_events.replay_endpoint: auto";
    look_with(&engine, "kv_events: {replay_endpoint: none}", "").fails(&["w1"], "replay", fix, &[]);
}

#[test]
#[contract("G28")]
fn replays_are_requested_at_a_wrong_port() {
    let engine = engine(&[]);
    let there = endpoint_of(&engine, "replay");
    let fix = "set workers[0].kv_events.replay_endpoint: \"{there}\", or leave it at auto: that is what the engine announces";
    let http = format!("tcp://{}", engine.data());
    for wrong in ["tcp://127.0.0.1:1", &http] {
        let seen = look_with(
            &engine,
            &format!("kv_events: {{replay_endpoint: \"{wrong}\"}}"),
            "",
        );
        seen.fails(&["w1"], "replay", fix, &[("there", &there)]);
    }
    look_with(
        &engine,
        &format!("kv_events: {{replay_endpoint: \"{there}\"}}"),
        "",
    )
    .green();
}

#[test]
#[contract("G28")]
fn replays_are_requested_where_another_rank_publishes() {
    let engine = engine(&["--dp-size", "2"]);
    // The default ports are adjacent, and each rank takes the next one of both.
    let second = engine.ready["kv_events"][1]
        .as_str()
        .expect("there are two ranks")
        .to_owned();
    let there = endpoint_of(&engine, "replay");
    let fix = "set workers[0].kv_events.replay_endpoint: \"{there}\", or leave it at auto: that is what the engine announces";
    let seen = look_with(
        &engine,
        &format!("kv_events: {{replay_endpoint: \"{second}\"}}"),
        "",
    );
    let check = seen.fails(&["w1"], "replay", fix, &[("there", &there)]);
    let message = check["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("is where rank 1 publishes its events"),
        "{message}"
    );
}
