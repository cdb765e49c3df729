//! The reply headers about routing.

use contract_id::contract;

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chat,
    json_reply,
};

fn engine() -> ScriptedEngine {
    ScriptedEngine::start(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"id":"fine"}"#,
    )))
}

fn reply(config: &str) -> RawReply {
    reply_to("m", config)
}

fn reply_to(model: &str, config: &str) -> RawReply {
    let engine = engine();
    let router = Program::serve_with(config, &[format!("w1={}", engine.url())], &[]).ready(1);
    let reply = RawClient::post(
        &router.data(),
        "/v1/chat/completions",
        chat(model, "hi", 1).to_string().as_bytes(),
    );
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply
}

/// The headers with this prefix, without the prefix.
fn named<'a>(reply: &'a RawReply, prefix: &str) -> Vec<&'a str> {
    reply
        .headers
        .iter()
        .filter_map(|(name, _)| name.strip_prefix(prefix))
        .collect()
}

#[test]
#[contract("V42")]
fn headers_of_vllm_router_accompany_ours_where_configured() {
    let usual = reply("");
    assert!(named(&usual, "x-vllm-router-").is_empty(), "{usual:?}");
    assert!(
        named(&usual, "x-warmroute-").contains(&"worker"),
        "{usual:?}"
    );
    let both = reply("compat: {headers: [vllm-router]}\nrouting: {policy: round_robin}\n");
    assert_eq!(
        both.header("x-vllm-router-worker"),
        both.header("x-warmroute-worker")
    );
    assert_eq!(both.header("x-vllm-router-policy"), Some("round_robin"));
    assert_eq!(both.header("x-vllm-router-method"), Some("policy"));
    assert_eq!(both.header("x-vllm-router-model"), Some("m"));
    assert_eq!(both.header("x-vllm-router-cache-status"), Some("BYPASS"));
    assert_eq!(both.header("x-vllm-router-hooks"), None);
}

#[test]
#[contract("V42")]
fn routing_headers_can_be_switched_off() {
    let silent = reply("compat: {headers: [vllm-router], expose_routing_headers: false}\n");
    assert!(
        named(&silent, "x-vllm-router-").is_empty() && named(&silent, "x-warmroute-").is_empty(),
        "{silent:?}"
    );
    assert!(silent.header("x-request-id").is_some());
    // A rewrite of the request is reported in any case.
    let config = "compat: {headers: [vllm-router], expose_routing_headers: false}\nmodels: {aliases: {nick: m}}\n";
    let changed = reply_to("nick", config);
    assert!(named(&changed, "x-vllm-router-").is_empty(), "{changed:?}");
    assert_eq!(named(&changed, "x-warmroute-"), ["rewrites"], "{changed:?}");
}
