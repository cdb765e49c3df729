//! A worker that reports loading for longer than `health_checks.max_warmup_duration`.

use contract_id::contract;

use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, chat, eventually,
    json_reply,
};

fn engine() -> ScriptedEngine {
    let reply = json_reply("200 OK", "", r#"{"id":"fine"}"#);
    ScriptedEngine::start(ScriptedReply::whole(reply))
}

/// The state of worker `a`.
fn state(router: &Program) -> String {
    let workers = router.workers();
    let loading = workers.iter().find(|worker| worker["name"] == "a");
    let state = loading.expect("it is configured")["state"].as_str();
    state.expect("a state is a word").to_owned()
}

fn until_state(router: &Program, expected: &str) {
    eventually(expected, || (state(router) == expected).then_some(()));
}

/// The workers of six requests.
fn workers_of_requests(router: &Program) -> Vec<String> {
    let send = |n: u32| {
        let body = chat("m", &format!("question {n}"), 1).to_string();
        let reply = RawClient::post(&router.data(), "/v1/chat/completions", body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let worker = reply.header("x-warmroute-worker");
        worker.expect("the reply names its worker").to_owned()
    };
    (0..6).map(send).collect()
}

#[test]
#[contract("CH3", "CH4")]
fn a_worker_that_loads_for_too_long_is_down_and_is_used_once_it_has_loaded() {
    let (loading, other) = (engine(), engine());
    loading.answer("/health", "503 Service Unavailable", "loading");
    let entry = |name: &str, engine: &ScriptedEngine| {
        format!(
            "{{name: {name}, url: \"{}\", type: vllm, models: [m]}}",
            engine.url()
        )
    };
    let config = format!(
        "workers: [{}, {}]\nhealth_checks: {{interval: 300ms, warmup_check_interval: 100ms, max_warmup_duration: 1500ms}}\n",
        entry("a", &loading),
        entry("b", &other)
    );
    let router = Program::serve_with(&config, &[], &["--policy", "round_robin"]);
    until_state(&router, "warming_up");
    eventually("the other worker", || {
        let workers = router.workers();
        workers
            .iter()
            .any(|worker| worker["state"] == "ready")
            .then_some(())
    });
    assert_eq!(workers_of_requests(&router), ["b"; 6]);

    until_state(&router, "down");
    assert_eq!(workers_of_requests(&router), ["b"; 6]);
    assert_eq!(state(&router), "down", "it still reports loading");

    loading.answer("/health", "200 OK", "");
    until_state(&router, "ready");
    let workers = workers_of_requests(&router);
    assert!(workers.iter().any(|worker| worker == "a"), "{workers:?}");
}
