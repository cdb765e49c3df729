//! Names that clients choose make neither more series of metrics nor longer listings.
//!
//! `bench/hostile/labels.py` sends a million of them.

use contract_id::contract;
use serde_json::json;

use crate::{
    faults::fleet::CHAT,
    harness::{
        Page, Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, chat,
        json_reply,
    },
};

const TENANTS: &str = "api_keys: [{name: a, key: sk-a}, {name: b, key: sk-b}]\n";
/// Names at each place.
const NAMES: usize = 300;
/// Most series, whatever clients send.
const MOST_SERIES: usize = 2_000;
const ROWS: usize = 10;

/// Sends a name at every place where a client can send one.
fn send(client: &mut RawClient, name: &str) {
    let key = ("x-api-key", "sk-a");
    let mut post = |path: &str, fields: &[(&str, &str)], body: serde_json::Value| {
        let headers = [&[key], fields].concat();
        client.send("POST", path, &headers, body.to_string().as_bytes());
        client.reply();
    };
    post(CHAT, &[], chat(name, "hi", 1));
    post(
        CHAT,
        &[
            ("x-session-id", name),
            ("x-request-id", name),
            ("traceparent", name),
        ],
        chat("m", name, 1),
    );
    post("/v1/embeddings", &[], json!({"model": name, "input": "a"}));
    post("/tokenize", &[], json!({"model": name, "prompt": "a"}));
    post(
        "/v1/route",
        &[],
        json!({"model": "m", "prompt": "a", "policy": name}),
    );
    post(
        "/v1/route",
        &[],
        json!({"model": "m", "prompt": "a", "worker": name}),
    );
    post(
        "/v1/completions",
        &[],
        json!({"model": "m", "prompt": "a", "lora_path": name}),
    );
    post(
        "/v1/responses",
        &[],
        json!({"model": "m", "input": "a", "previous_response_id": name}),
    );
    let mut get = |method: &str, path: &str, fields: &[(&str, &str)]| {
        client.send(method, path, fields, b"");
        client.reply();
    };
    get("GET", &format!("/v1/models/{name}"), &[key]);
    get("GET", &format!("/{name}"), &[key]);
    get(
        "GET",
        "/v1/models",
        &[("x-api-key", name), ("user-agent", name)],
    );
    get(
        "GET",
        &format!("/v1/{name}?{name}={name}"),
        &[key, (name, name)],
    );
    get(&name.to_ascii_uppercase(), "/v1/models", &[key]);
}

#[test]
#[contract("G22")]
fn names_that_clients_choose_are_no_labels_and_no_rows() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    let router = Program::serve_with(TENANTS, &[engine.url()], &[]).ready(1);
    let (data, admin) = (router.data(), router.admin());
    let series = || {
        let page = RawClient::get(&admin, "/metrics").text();
        Page::read(&page).samples.len()
    };
    let rows = |path: &str, member: &str| {
        let reply = RawClient::get(&admin, path).json();
        reply[member].as_array().expect("a list").len()
    };
    let mut client = RawClient::connect(&data);
    (0..ROWS).for_each(|number| send(&mut client, &format!("first{number}")));
    let before = series();
    (0..NAMES).for_each(|number| send(&mut client, &format!("name{number}")));
    let after = series();
    assert!(after <= MOST_SERIES, "{after}");
    // Some outcomes come later than the first names.
    assert!(after < before + 50, "{before} series before, {after} after");
    assert_eq!(
        rows(&format!("/admin/decisions?limit={ROWS}"), "decisions"),
        ROWS
    );
    assert_eq!(rows("/admin/tenants?limit=1", "tenants"), 1);
    assert_eq!(
        (
            rows("/admin/tenants", "tenants"),
            rows("/admin/workers", "workers")
        ),
        (2, 1)
    );
}
