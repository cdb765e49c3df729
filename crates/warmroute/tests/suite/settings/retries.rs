//! How often a request is sent, by the two keys that limit it.

use contract_id::contract;

use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, chat, json_reply,
};

/// Sends one request to workers that are all full; returns the number of attempts.
fn count_attempts(config: &str) -> u64 {
    let full = || ScriptedReply::whole(json_reply("503 Full", "", "{}"));
    let engines: Vec<_> = (0..5).map(|_| ScriptedEngine::start(full())).collect();
    let workers: Vec<_> = engines
        .iter()
        .enumerate()
        .map(|(n, engine)| format!("w{n}={}", engine.url()))
        .collect();
    let config = format!("circuit_breaker: {{enabled: false}}\n{config}");
    let router = Program::serve_with(&config, &workers, &[]).ready(5);
    let reply = RawClient::chat(&router.data(), &chat("m", "hi", 1)).reply();
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (503, "overloaded"),
        "{}",
        reply.text()
    );
    router.wait_until_idle();
    engines.iter().map(ScriptedEngine::requests).sum()
}

#[test]
#[contract("CH9", "CH10", "B2")]
fn the_smaller_of_both_keys_limits_how_often_a_request_is_sent() {
    for (config, count) in [
        ("", 3),
        ("request: {max_retries: 0}\n", 1),
        ("request: {max_retries: 1}\n", 2),
        ("request: {max_retries: 9}\nretry: {max_attempts: 4}\n", 4),
        ("retry: {max_attempts: 2}\n", 2),
        ("request: {max_retries: 3}\nretry: {max_attempts: 9}\n", 4),
    ] {
        assert_eq!(count_attempts(config), count, "{config}");
    }
}
