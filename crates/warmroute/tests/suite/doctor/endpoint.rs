//! Events that are expected or published at a wrong endpoint.

use contract_id::contract;
use serde_json::{Value, json};

use super::{
    front::{EngineFront, FrontBehavior},
    look::{endpoint_of, engine, look_at, look_at_url, look_with_url},
};

/// Announces a publisher that does not exist.
struct FalseAnnouncer(Value);

impl FrontBehavior for FalseAnnouncer {
    fn reply(&self, path: &str, body: &mut Value) {
        if path == "/kv_event_sources" {
            for (key, value) in self.0.as_object().into_iter().flatten() {
                body["0"][key] = value.clone();
            }
        }
    }
}

#[test]
#[contract("G28")]
fn wrong_port_of_events() {
    let (engine, other) = (engine(&[]), engine(&[]));
    let there = endpoint_of(&engine, "kv_events");
    let fix = "set workers[0].kv_events.endpoint: \"{there}\", or leave it at auto: that is what the engine announces";
    let elsewhere = endpoint_of(&other, "kv_events");
    let replay = endpoint_of(&engine, "replay");
    let http = format!("tcp://{}", engine.data());
    // A closed port; a server that is no publisher; another engine's publisher; the engine's own
    // replay socket.
    for wrong in ["tcp://127.0.0.1:1", &http, &elsewhere, &replay] {
        let seen = look_at(&engine, &["--kv-events", &format!("w1={wrong}")]);
        let check = seen.fails(&["w1"], "events_endpoint", fix, &[("there", &there)]);
        assert_eq!(
            (&check["found"], &check["expected"]),
            (&json!(wrong), &json!(there))
        );
    }
    look_at(&engine, &["--kv-events", &format!("w1={there}")]).green();
}

/// No process listens at ports this low.
const NOBODY: &str = "tcp://127.0.0.1:1";

#[test]
#[contract("G28")]
fn the_engine_connects_where_it_should_listen() {
    let engine = engine(&[]);
    let front = EngineFront::of(&engine, FalseAnnouncer(json!({"endpoint": NOBODY})));
    let fix = "set \"endpoint\": \"tcp://*:{port}\" in the engine's --kv-events-config: an address without a star is \
               connected to, not listened at";
    look_at_url(&front.url(), &[]).fails(&["w1"], "events_endpoint", fix, &[("port", "1")]);
}

#[test]
#[contract("G28")]
fn the_port_of_events_is_closed_to_the_router() {
    let engine = engine(&[]);
    let front = EngineFront::of(&engine, FalseAnnouncer(json!({"endpoint": "tcp://*:1"})));
    let fix = "open port {port} of the engine's machine to the router (for a container: docker run -p {port}:{port})";
    look_at_url(&front.url(), &[]).fails(&["w1"], "events_endpoint", fix, &[("port", "1")]);
}

#[test]
#[contract("G28", "S37")]
fn the_engine_publishes_at_another_address_than_its_requests() {
    let engine = engine(&["--kv-events", "tcp://127.0.0.2:0"]);
    let there = endpoint_of(&engine, "kv_events");
    let port = there.rsplit(':').next().expect("a port");
    let fix = "set workers[0].kv_events.endpoint: \"{there}\" if the router reaches that address, or \"endpoint\": \
               \"tcp://*:{port}\" in the engine's --kv-events-config: the engine publishes at another address than it \
               serves requests at";
    let values = [("there", &*there), ("port", port)];
    look_at(&engine, &[]).fails(&["w1"], "events_endpoint", fix, &values);
    look_with_url(
        &format!("http://{}", engine.data()),
        &format!("kv_events: {{endpoint: \"{there}\"}}"),
        "",
    )
    .green();
}

#[test]
#[contract("G28", "S37")]
fn an_announced_address_of_the_engines_own_network_is_replaced_by_the_workers_own() {
    let engine = engine(&[]);
    let there = endpoint_of(&engine, "kv_events");
    // Its port is open only at one address of this machine.
    let front = EngineFront::of(
        &engine,
        FalseAnnouncer(json!({"endpoint": there.replace("127.0.0.1", "172.17.0.99")})),
    );
    look_at_url(&front.url(), &[]).green();
}

#[test]
#[contract("G28")]
fn the_engines_socket_file_is_in_another_container() {
    let engine = engine(&[]);
    let front = EngineFront::of(
        &engine,
        FalseAnnouncer(json!({"endpoint": "ipc:///nowhere/kv-events"})),
    );
    let fix = "let the router see the engine's {there}, or set \"endpoint\": \"tcp://*:5557\" in the engine's \
               --kv-events-config";
    let values = [("there", "ipc:///nowhere/kv-events")];
    look_at_url(&front.url(), &[]).fails(&["w1"], "events_endpoint", fix, &values);
}

#[test]
#[contract("G28")]
fn events_are_published_on_all_interfaces() {
    let open = engine(&[
        "--kv-events",
        "tcp://0.0.0.0:0",
        "--replay",
        "tcp://0.0.0.0:0",
    ]);
    let there = endpoint_of(&open, "kv_events");
    let port = there.rsplit(':').next().expect("a port");
    let fix = "set \"endpoint\": \"ipc:///tmp/{name}.events\", \"replay_endpoint\": \"ipc:///tmp/{name}.replay\" in the \
               engine's --kv-events-config, or close port {port} to other machines";
    let seen = look_at(&open, &[]);
    let check = seen.warns(
        "w1",
        "events_endpoint",
        fix,
        &[("name", "w1"), ("port", port)],
    );
    assert_eq!(check["found"], json!(there));
}
