//! Wrong addresses, keys and paths of a worker.

use contract_id::contract;
use serde_json::json;

use super::{
    front::{EngineFront, FrontBehavior, FrontRequest},
    look::{doctor, endpoint_of, engine, look_at, look_at_url, look_with, look_with_url},
};
use crate::harness::{Program, ScriptedEngine, ScriptedReply, json_reply};

/// Serves the engine only under `/llm`.
struct SubfolderEngine;

impl FrontBehavior for SubfolderEngine {
    fn on_request(&self, request: &mut FrontRequest) -> Option<Vec<u8>> {
        match request.path.strip_prefix("/llm") {
            Some(path) => {
                request.path = path.to_owned();
                None
            }
            None => Some(json_reply("404 Not Found", "connection: close\r\n", "{}")),
        }
    }
}

#[test]
#[contract("G28")]
fn nothing_listens_at_the_workers_address() {
    let fix = "start the engine, or correct workers[0].url";
    look_at_url("http://127.0.0.1:1", &[]).fails(&["w1"], "reachable", fix, &[]);
}

#[test]
#[contract("G28")]
fn the_workers_address_ends_with_v1() {
    let engine = engine(&[]);
    let fix = "set workers[0].url: \"{url}\"";
    let url = engine.url();
    look_at_url(&format!("{url}/v1"), &[]).fails(&["w1"], "model_listed", fix, &[("url", &url)]);
    look_at_url(&url, &[]).green();
}

#[test]
#[contract("G28")]
fn the_workers_address_lacks_the_path_of_the_engine() {
    let engine = engine(&[]);
    let front = EngineFront::of(&engine, SubfolderEngine);
    let fix = "set workers[0].url: \"{url}/PATH\" with the path that the engine is served under";
    look_at_url(&front.url(), &[]).fails(&["w1"], "model_listed", fix, &[("url", &front.url())]);
    look_at_url(&format!("{}/llm", front.url()), &[]).green();
}

#[test]
#[contract("G28")]
fn the_workers_address_is_its_events_endpoint() {
    let engine = engine(&[]);
    for what in ["kv_events", "replay"] {
        let there = endpoint_of(&engine, what);
        let url = there.replace("tcp://", "http://");
        let fix = "set workers[0].url to the engine's --host and --port, and workers[0].kv_events.endpoint: \"{there}\" if \
                   that is its publisher";
        look_at_url(&url, &[]).fails(&["w1"], "reachable", fix, &[("there", &there)]);
    }
}

#[test]
#[contract("G28")]
fn the_engines_key_is_missing_or_wrong() {
    let locked = engine(&["--api-key", "k"]);
    let fix = "set workers[0].api_key: ${ENGINE_KEY}, with the engine's --api-key in that variable";
    for (keys, found) in [("", "none"), ("api_key: other", "another key")] {
        let seen = look_with(&locked, keys, "");
        assert_eq!(
            seen.fails(&["w1"], "model_listed", fix, &[])["found"],
            found
        );
    }
    look_with(&locked, "api_key: k", "").green();
}

#[test]
#[contract("G28")]
fn a_configured_model_is_not_served() {
    let engine = engine(&["--loras", "ad1"]);
    let fix =
        "set workers[0].models: [{right}], or start the engine with --served-model-name {missing}";
    look_with(&engine, "models: [other]", "").fails(
        &["w1"],
        "model_listed",
        fix,
        &[("right", "sim, ad1"), ("missing", "other")],
    );
    // An adapter that is not loaded.
    let values = [("right", "sim, ad1"), ("missing", "ad2")];
    look_with(&engine, "models: [sim, ad1, ad2]", "").fails(&["w1"], "model_listed", fix, &values);
}

#[test]
#[contract("G28")]
fn the_engine_lacks_the_configured_health_path() {
    let engine = engine(&[]);
    let fix = "leave out workers[0].health_check.{key}: the engine answers GET /v1/models";
    look_with(&engine, "health_check: {method: post}", "").fails(
        &["w1"],
        "health_endpoint",
        fix,
        &[("key", "method")],
    );
    let wrong = "health_check: {endpoint: /healthz, fallback_endpoints: []}";
    look_with(&engine, wrong, "").fails(&["w1"], "health_endpoint", fix, &[("key", "endpoint")]);
}

/// Reports this release.
struct ReleaseEngine(&'static str);

impl FrontBehavior for ReleaseEngine {
    fn reply(&self, path: &str, body: &mut serde_json::Value) {
        if path == "/version" {
            body["version"] = self.0.into();
        }
    }
}

#[test]
#[contract("G28")]
fn a_release_that_publishes_no_events() {
    let old = engine(&["--no-kv-events", "--without", "/kv_event_sources"]);
    let front = EngineFront::of(&old, ReleaseEngine("0.8.5"));
    let fix = "use vLLM 0.9.0 or later, or set workers[0].kv_events.source: none";
    look_at_url(&front.url(), &[]).fails(&["w1"], "engine_version", fix, &[]);
    look_with_url(&front.url(), "kv_events: {source: none}", "").green();
}

#[test]
fn an_absent_worker_does_not_hide_the_other_one() {
    let engine = engine(&[]);
    let other = format!("w2={}", engine.url());
    let seen = doctor(&["-w", "w1=http://127.0.0.1:1", "-w", &other]);
    seen.fails_only("reachable", &["workers[0].url"]);
    assert_eq!(seen.check("w2", "hash_alias")["status"], "ok");
    assert!(seen.with("skip").contains(&"w1 clock".to_owned()));
}

#[test]
fn a_hanging_engine_does_not_hold_up_the_report() {
    use crate::harness::SimControls;

    let engine = engine(&[]);
    engine.fault("hang", 100);
    look_at(&engine, &["--timeout", "3"]).fails_only("reachable", &["--timeout"]);
}

#[test]
fn the_doctor_waits_for_an_engine_that_is_still_loading() {
    let engine = Program::engine(&["--startup-delay", "100s"]);
    look_with_url(&engine.url(), "", "")
        .fails_only("health_endpoint", &["wait until the engine is up"]);
}

#[test]
fn a_server_without_events_tokenize_and_usage_details_is_checked_as_far_as_possible() {
    let counts = json!({"choices": [{"text": "x"}], "usage": {"prompt_tokens": 5}}).to_string();
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", &counts)));
    let look = |args: &[&str]| {
        // The first request is a call of its `/tokenize`.
        engine.once(ScriptedReply::whole(json_reply("404 Not Found", "", "{}")));
        look_at_url(&engine.url(), args)
    };
    let seen = look(&[]);
    assert_eq!(
        (seen.code, seen.with("fail")),
        (Some(0), Vec::new()),
        "{:#}",
        seen.report
    );
    assert_eq!(
        seen.with("warn"),
        ["w1 block_size", "w1 tokenizer"],
        "both are only guessed"
    );
    for id in [
        "prefix_caching",
        "usage_details",
        "events_enabled",
        "replay",
        "hash_alias",
        "salt_honoured",
    ] {
        assert_eq!(seen.check("w1", id)["status"], "skip", "{id}");
    }
    // With a local tokenizer, its counts are compared and differ from the engine's.
    let seen = look(&["--tokenizer", &format!("m={}", super::tokens::tiny_qwen())]);
    assert_eq!(seen.with("fail"), ["w1 tokenizer"]);
    let message = &seen.check("w1", "tokenizer")["message"];
    assert!(
        message
            .as_str()
            .is_some_and(|message| message.contains("counts 5 tokens in a prompt of ")),
        "{message}"
    );
}
