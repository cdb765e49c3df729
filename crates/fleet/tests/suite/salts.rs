//! Probes of whether engines honour salts.

use contract_id::contract;
use fleet::{EngineKind, FailureKind, SaltSupport};

use crate::{
    fake_engine::FakeEngine,
    setup::{RunningFleet, parts, start, worker},
};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A reply that reports this many cached tokens.
fn cached(tokens: u32) -> String {
    format!(
        r#"{{"choices":[],"usage":{{"prompt_tokens":400,"prompt_tokens_details":{{"cached_tokens":{tokens}}}}}}}"#
    )
}

/// A fleet that probes the salts of this engine.
fn probing(engine: &FakeEngine, kind: Option<EngineKind>) -> RunningFleet {
    let mut own = worker("w1", &engine.url());
    own.engine = kind;
    let mut parts = parts(vec![own]);
    parts.config.probes_salts = true;
    start(parts)
}

/// Waits until this was found of the worker.
async fn found(running: &RunningFleet, support: SaltSupport) {
    running
        .until("what it does with salts", |snapshot| {
            let worker = snapshot.worker_named("w1");
            worker.is_some_and(|worker| worker.salt_support == support)
        })
        .await;
}

/// The bodies of the requests to this path.
fn requests_to(engine: &FakeEngine, path: &str) -> Vec<String> {
    let start = format!("POST {path} ");
    let heads = engine.heads().into_iter();
    heads.filter(|head| head.starts_with(&start)).collect()
}

#[tokio::test]
#[contract("S59")]
async fn one_prompt_is_sent_twice_under_one_salt_and_once_under_another() {
    let engine = FakeEngine::serving("qwen").await;
    engine.vllm(16);
    engine.answer(COMPLETIONS, 200, cached(32));
    let running = probing(&engine, None);
    found(&running, SaltSupport::Ignored).await;
    let sent = requests_to(&engine, COMPLETIONS);
    let bodies: Vec<&str> = sent
        .iter()
        .map(|request| request.split_once("\r\n\r\n").unwrap().1)
        .collect();
    assert_eq!(bodies.len(), 3);
    assert_eq!(bodies[0], bodies[1]);
    let member = |body: &str, name: &str| -> String {
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        body[name].to_string()
    };
    assert_eq!(member(bodies[0], "prompt"), member(bodies[2], "prompt"));
    let salts = [0, 2].map(|at: usize| member(bodies[at], "cache_salt"));
    assert_ne!(salts[0], salts[1]);
    assert_eq!(member(bodies[2], "max_tokens"), "1");
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("S59")]
async fn an_engine_without_completions_is_probed_with_chats() {
    let engine = FakeEngine::serving("qwen").await;
    engine.vllm(16);
    engine.answer(CHAT, 200, cached(32));
    let running = probing(&engine, None);
    found(&running, SaltSupport::Ignored).await;
    assert_eq!(requests_to(&engine, COMPLETIONS).len(), 1);
    assert_eq!(requests_to(&engine, CHAT).len(), 3);
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("S59")]
async fn a_worker_of_a_kind_without_salts_is_known_to_ignore_them_without_a_request() {
    let engine = FakeEngine::serving("qwen").await;
    engine.answer("/api/tags", 200, "{}");
    engine.answer(COMPLETIONS, 200, cached(0));
    let running = probing(&engine, Some(EngineKind::Ollama));
    found(&running, SaltSupport::Ignored).await;
    assert!(requests_to(&engine, COMPLETIONS).is_empty());
    running.fleet.stop().await;
}

#[tokio::test]
#[contract("S59")]
async fn what_was_found_of_a_process_is_not_held_of_the_next_one() {
    let mut engine = FakeEngine::serving("qwen").await;
    engine.vllm(16);
    engine.answer(COMPLETIONS, 200, cached(32));
    let running = probing(&engine, None);
    found(&running, SaltSupport::Ignored).await;
    engine.die().await;
    let worker = running.fleet.snapshot().worker_named("w1").unwrap().id;
    running.fleet.report_failure(worker, FailureKind::Refused);
    found(&running, SaltSupport::Unknown).await;
    engine.start();
    found(&running, SaltSupport::Ignored).await;
    running.fleet.stop().await;
}
