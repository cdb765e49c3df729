//! Data-parallel ranks with a wrong count or wrong endpoints.

use contract_id::contract;
use serde_json::{Value, json};

use super::{
    front::{EngineFront, FrontBehavior},
    look::{endpoint_of, engine, look_at, look_at_url, look_with},
};

#[test]
#[contract("G28")]
fn ranks_miscounted() {
    let (one, two) = (engine(&[]), engine(&["--dp-size", "2"]));
    let fix = "set workers[0].dp_ranks: {there}, or leave it at auto, or start the engine with --data-parallel-size {here}";
    look_with(&one, "dp_ranks: 2", "").fails(
        &["w1"],
        "dp_ranks",
        fix,
        &[("there", "1"), ("here", "2")],
    );
    let seen = look_with(&two, "dp_ranks: 1", "");
    let check = seen.fails(&["w1"], "dp_ranks", fix, &[("there", "2"), ("here", "1")]);
    assert_eq!(
        (&check["found"], &check["expected"]),
        (&json!("2"), &json!("1"))
    );
    // With an explicit endpoint, the port of the second rank would be a guess.
    let spelled = format!(
        "dp_ranks: 2, kv_events: {{endpoint: \"{}\"}}",
        endpoint_of(&one, "kv_events")
    );
    look_with(&one, &spelled, "").fails(&["w1"], "dp_ranks", fix, &[("there", "1"), ("here", "2")]);
    look_with(&two, "dp_ranks: 2", "").green();
}

/// Announces each rank's publisher as that of the other.
struct SwappedRanks;

impl FrontBehavior for SwappedRanks {
    fn reply(&self, path: &str, body: &mut Value) {
        if path == "/kv_event_sources" {
            *body = json!({"0": body["1"], "1": body["0"]});
        }
    }
}

#[test]
#[contract("G28")]
fn ranks_publish_in_each_others_place() {
    let engine = engine(&["--dp-size", "2"]);
    look_at(&engine, &[]).green();
    let front = EngineFront::of(&engine, SwappedRanks);
    let fix = "let each rank publish on the port of rank 0 plus its number, and name rank 0's in \
               workers[0].kv_events.endpoint, or leave that at auto";
    look_at_url(&front.url(), &[]).fails(&["w1"], "dp_offset", fix, &[]);
}
