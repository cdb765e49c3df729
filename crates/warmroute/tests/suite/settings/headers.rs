//! The reply headers about routing.

use contract_id::contract;
use serde_json::json;

use crate::harness::{
    Program, RawClient, RawReply, RoutedFleet, RouterQueries as _, ScriptedEngine, ScriptedReply,
    chat, eventually, json_reply, words,
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

#[test]
#[contract("V42")]
fn a_request_of_a_cluster_has_its_name_and_the_method_cluster() {
    let engine = engine();
    let embedding = |direction: &str| {
        let body = format!(r#"{{"data":[{{"index":0,"embedding":{direction}}}]}}"#);
        engine.answer("/v1/embeddings", "200 OK", &body);
    };
    embedding("[1.0, 0.0]");
    let config = "compat: {headers: [vllm-router]}\nrouting:\n  semantic_clusters:\n    enabled: true\n    \
                  embedding_model: m\n    timeout: 10s\n    clusters:\n      \
                  - {name: near, examples: [hello], workers: [w1]}\n";
    let router = Program::serve_with(config, &[format!("w1={}", engine.url())], &[]).ready(1);
    let body = chat("m", "hi", 1).to_string();
    eventually("the examples to be embedded", || {
        let dry_run = RawClient::post(&router.data(), "/v1/route", body.as_bytes()).json();
        (dry_run["cluster"]["name"] == "near").then_some(())
    });
    let send = || RawClient::post(&router.data(), "/v1/chat/completions", body.as_bytes());
    let names = ["x-vllm-router-cluster", "x-vllm-router-method"];
    let near = send();
    assert_eq!(
        names.map(|name| near.header(name)),
        [Some("near"), Some("cluster")]
    );
    embedding("[0.0, 1.0]");
    let far = send();
    assert_eq!(names.map(|name| far.header(name)), [None, Some("policy")]);
}

#[test]
#[contract("V42")]
fn a_choice_by_cached_blocks_has_the_method_kv() {
    let config = "compat: {headers: [vllm-router]}\n";
    let routed = RoutedFleet::with(&[&[]], config, &[]);
    for (policy, method) in [
        ("warm", "kv"),
        ("kv_aware", "kv"),
        ("dynamo_cost", "kv"),
        ("round_robin", "policy"),
        ("least_loaded", "policy"),
    ] {
        let prompt = json!({"prompt": words(policy, 60)});
        let methods = [(); 2].map(|()| {
            let turn = routed.completion(prompt.clone(), &[("x-warmroute-policy", policy)]);
            turn.reply.header("x-vllm-router-method").map(str::to_owned)
        });
        assert_eq!(
            methods.each_ref().map(Option::as_deref),
            [Some("policy"), Some(method)],
            "{policy}: nothing is cached for the first request"
        );
    }
}
