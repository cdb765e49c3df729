//! An engine that restarts on its port with another model.

use contract_id::contract;
use serde_json::Value;
use test_programs::ReservedPort;

use crate::{
    faults::fleet::CHAT,
    harness::{Program, RawClient, RawReply, RouterQueries as _, eventually, long_chat},
};

fn engine(port: &str, model: &str) -> Program {
    Program::engine(&[
        "--no-kv-events",
        "--speed",
        "20",
        "--port",
        port,
        "--model",
        model,
    ])
}

fn send(router: &Program, model: &str) -> RawReply {
    RawClient::post(
        &router.data(),
        CHAT,
        long_chat(model, 400, 2).to_string().as_bytes(),
    )
}

fn models(router: &Program) -> Vec<Value> {
    let list = RawClient::get(&router.data(), "/v1/models").json();
    list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].clone())
        .collect()
}

fn predicted(reply: &RawReply) -> u64 {
    reply
        .header("x-warmroute-predicted-cached-tokens")
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
#[contract("F29")]
fn an_engine_that_returns_with_another_model_serves_only_that_one_and_its_cache_is_dropped() {
    let reserved = ReservedPort::new();
    let port = reserved.number().to_string();
    let mut before = engine(&port, "first");
    // Tokens are computed however long that takes.
    let config = "routing: {tokenize_budget: 60s}\n";
    let router = Program::serve_with(config, &[before.url()], &[]).ready(1);
    assert_eq!(predicted(&send(&router, "first")), 0);
    assert!(
        predicted(&send(&router, "first")) > 300,
        "the worker holds its prompt"
    );

    before.kill();
    let now = engine(&port, "second");
    eventually("the new model to be listed", || {
        // No reply in the meantime comes from the other model.
        let meanwhile = send(&router, "first");
        assert!(
            matches!(meanwhile.status, 404 | 502 | 503),
            "{}",
            meanwhile.text()
        );
        (models(&router) == ["second"]).then_some(())
    });
    let reply = send(&router, "first");
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (404, "model_not_found")
    );
    let reply = send(&router, "second");
    assert_eq!(
        (
            reply.status,
            reply.json()["model"].as_str(),
            predicted(&reply)
        ),
        (200, Some("second"), 0)
    );

    drop(now);
    let _again = engine(&port, "first");
    eventually("the first model to be back", || {
        let meanwhile = send(&router, "second");
        assert!(
            matches!(meanwhile.status, 404 | 502 | 503),
            "{}",
            meanwhile.text()
        );
        (models(&router) == ["first"]).then_some(())
    });
    assert_eq!(
        predicted(&send(&router, "first")),
        0,
        "the process that knew the prompt is gone"
    );
}
