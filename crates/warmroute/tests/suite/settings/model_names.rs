//! Aliases of models, and fallback models.

use contract_id::contract;
use serde_json::json;

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chat,
    eventually, json_reply,
};

const NAMES: &str = "\
models:
  aliases: {gpt-4o: small, nick: sim-big}
  rules:
    - {match: \"claude-*\", rewrite: sim-big, fallback: [missing, gpt-4o]}
    - {match: nobody, fallback: [no-such]}
";

fn sim(model: &str) -> Program {
    Program::engine(&["--model", model, "--no-kv-events", "--speed", "20"])
}

fn send(router: &Program, model: &str) -> RawReply {
    RawClient::post(
        &router.data(),
        "/v1/chat/completions",
        chat(model, "hi", 2).to_string().as_bytes(),
    )
}

fn fleet() -> (Program, Vec<Program>) {
    let engines = vec![sim("sim-big"), sim("small")];
    let workers = [
        format!("big={}", engines[0].url()),
        format!("small={}", engines[1].url()),
    ];
    let config = format!("{NAMES}health_checks: {{interval: 100ms}}\n");
    (
        Program::serve_with(&config, &workers, &[]).ready(2),
        engines,
    )
}

#[test]
#[contract("V44")]
fn an_alias_gets_the_model_it_stands_for_and_the_receipt_names_both() {
    let (router, _engines) = fleet();
    let reply = send(&router, "gpt-4o");
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(
        (
            reply.header("x-warmroute-worker"),
            reply.header("x-warmroute-rewrites")
        ),
        (Some("small"), Some("model"))
    );
    assert_eq!(
        reply.json()["model"],
        "small",
        "the engine's own name stays"
    );
    let receipt = router.receipt_of(&reply);
    assert_eq!(
        (&receipt["model"], &receipt["served_model"]),
        (&"gpt-4o".into(), &"small".into())
    );
    assert_eq!(receipt["rewrites"], json!(["model"]));
    let list = RawClient::get(&router.data(), "/v1/models").json();
    let ids: Vec<_> = list["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|model| model["id"].clone())
        .collect();
    assert_eq!(ids, ["gpt-4o", "nick", "sim-big", "small"]);
    assert_eq!(
        RawClient::get(&router.data(), "/v1/models/gpt-4o").json()["id"],
        "gpt-4o"
    );
    // A request with the model's own name is forwarded unchanged.
    let own = send(&router, "small");
    assert_eq!(
        (own.status, own.header("x-warmroute-rewrites")),
        (200, None)
    );
}

#[test]
#[contract("V44")]
fn only_the_models_name_changes_in_the_body() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"id":"fine","model":"m"}"#,
    )));
    let config = "models: {aliases: {\"a/b\": m}}\n";
    let router = Program::serve_with(config, &[format!("w={}", engine.url())], &[]).ready(1);
    let body = r#"{ "messages" : [{"role":"user","content":"é"}], "model" :  "a/b", "x": 1e2 }"#;
    let reply = RawClient::post(&router.data(), "/v1/chat/completions", body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    let seen = engine.next_request();
    assert_eq!(
        String::from_utf8_lossy(&seen.body),
        body.replace("\"a/b\"", "\"m\"")
    );
    assert_eq!(
        seen.header("content-length"),
        Some(seen.body.len().to_string())
    );
    router.wait_until_idle();
}

#[test]
#[contract("V44")]
fn a_rule_falls_back_along_its_chain_while_no_worker_serves_the_model_before() {
    let (router, mut engines) = fleet();
    let first = send(&router, "claude-4");
    assert_eq!(
        (first.status, first.header("x-warmroute-worker")),
        (200, Some("big")),
        "{}",
        first.text()
    );
    engines[0].kill();
    eventually("the fallback", || {
        let reply = send(&router, "claude-4");
        (reply.status == 200 && reply.header("x-warmroute-worker") == Some("small")).then_some(())
    });
    engines[1].kill();
    eventually("the end of the chain", || {
        let reply = send(&router, "claude-4");
        (reply.status == 503 && reply.text().contains("sim-big, missing, small")).then_some(())
    });
    let unknown = send(&router, "nobody");
    assert_eq!(
        (unknown.status, unknown.error_code().as_str()),
        (404, "model_not_found"),
        "{}",
        unknown.text()
    );
    assert!(
        unknown.text().contains("nobody, no-such"),
        "{}",
        unknown.text()
    );
    router.wait_until_idle();
}
