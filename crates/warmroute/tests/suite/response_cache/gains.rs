//! The four gains that the document of the cache expects, shown on simulated engines. `--nocapture`
//! prints our figures beside the document's; `docs/benchmarks/cache.md` has them.

use std::{collections::HashMap, fmt::Write as _};

use contract_id::contract;
use serde_json::{Value, json};

use super::{CachedRouter, chat_body};
use crate::{
    harness::{Program, RawClient, RouterQueries as _, SimControls as _, eventually, words},
    redis_server::RedisServer,
};

/// Requests of applications with a system prompt of 512 tokens each, in the layout of Mooncake's
/// traces.
fn shared_prompts(apps: u64, requests: u64) -> String {
    let mut trace = String::new();
    for n in 0..requests {
        // Any fixed order that does not stay with one application for long.
        let app = n.wrapping_mul(2_654_435_761) % 4_294_967_291 % apps;
        let line = json!({"timestamp": n * 40, "input_length": 640, "output_length": 16, "hash_ids": [app, apps + n]});
        writeln!(trace, "{line}").expect("a string takes it");
    }
    trace
}

#[test]
#[contract("CK85")]
fn a_shared_system_prompt_has_a_fifth_less_ttft_than_under_round_robin() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), shared_prompts(96, 4_000)).expect("it can be written");
    let path = file.path().to_str().expect("its name is text");
    let run = Program::finish(&[
        "simulate",
        "--trace",
        path,
        "--workers",
        "4",
        "--kv-tokens",
        "65536",
        "--load",
        "0.4",
        "--profile",
        "70b-h100x4",
        "--json",
        "--policy",
        "round_robin",
        "--policy",
        "prefix_hash",
        "--policy",
        "warm",
    ]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).expect("one JSON object");
    let mean: HashMap<&str, f64> = report["cells"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|cell| {
            (
                cell["policy"].as_str().expect("a name"),
                cell["ttft_ms"]["mean"].as_f64().expect("a time"),
            )
        })
        .collect();
    let turns = mean["round_robin"];
    for policy in ["prefix_hash", "warm"] {
        let less = 100.0 * (1.0 - mean[policy] / turns);
        eprintln!(
            "mean TTFT: {policy} {:.1} ms, round_robin {turns:.1} ms: {less:.0} % lower (document: 20-40 %)",
            mean[policy]
        );
        assert!(less >= 20.0, "{policy}: {mean:?}");
    }
}

#[test]
#[contract("CK85")]
fn the_same_questions_about_the_same_document_reach_an_engine_once() {
    let engines: Vec<_> = (0..2)
        .map(|_| Program::engine(&["--no-kv-events"]))
        .collect();
    let workers: Vec<String> = engines.iter().map(Program::url).collect();
    let router = Program::serve_with("response_cache: {enabled: true}\n", &workers, &[]).ready(2);
    let document = words("a contract of carriage", 400);
    let round = || {
        for n in 0..40 {
            let messages = json!([{"role": "system", "content": document}, {"role": "user", "content": format!("Clause {n}?")}]);
            let body =
                json!({"model": "sim", "messages": messages, "temperature": 0, "max_tokens": 8});
            let reply = RawClient::post(
                &router.data(),
                "/v1/chat/completions",
                body.to_string().as_bytes(),
            );
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
        engines
            .iter()
            .map(|engine| engine.stats()["requests"].as_u64().expect("a count"))
            .sum::<u64>()
    };
    let first = round();
    let rounds: Vec<u64> = (0..3).map(|_| round()).collect();
    eprintln!(
        "engine requests: first round {first}, each later one {} (document: up to 100 % fewer)",
        rounds[2] - rounds[1]
    );
    assert_eq!((first, rounds), (40, vec![40; 3]));
}

#[test]
#[contract("CK85")]
fn hot_prefixes_reach_a_warm_engine() {
    let engines: Vec<_> = (0..4)
        .map(|_| Program::engine(&["--speed", "20"]))
        .collect();
    let workers: Vec<String> = engines.iter().map(Program::url).collect();
    let router =
        Program::serve_with("cache: {enable_deduplication: false}\n", &workers, &[]).ready(4);
    let prefixes: Vec<String> = (0..12)
        .map(|n| words(&format!("assistant {n}"), 300))
        .collect();
    let (mut warm, requests) = (0, 240);
    for n in 0..requests {
        let messages = json!([{"role": "system", "content": prefixes[n * 7 % 12]}, {"role": "user", "content": format!("Question {n}")}]);
        let body = json!({"model": "sim", "messages": messages, "max_tokens": 4});
        let reply = RawClient::post(
            &router.data(),
            "/v1/chat/completions",
            body.to_string().as_bytes(),
        )
        .json();
        let tokens = |pointer: &str| {
            reply
                .pointer(pointer)
                .and_then(Value::as_u64)
                .expect("usage reports it")
        };
        // Nearly the whole prompt is the prefix.
        let cached = tokens("/usage/prompt_tokens_details/cached_tokens");
        warm += usize::from(cached * 10 >= tokens("/usage/prompt_tokens") * 8);
    }
    eprintln!(
        "{warm} of {requests} requests met a warm engine, {} % (document: 60-80 %)",
        100 * warm / requests
    );
    assert!(warm * 10 >= requests * 8, "{warm} of {requests}");
    router.wait_until_idle();
}

#[test]
#[contract("CK85", "CK36")]
fn no_request_fails_when_redis_does() {
    test_programs::require!(RedisServer);
    let mut redis = RedisServer::start();
    let cached = CachedRouter::start(&format!(
        ", backend: redis, lookup_budget: 20s, redis: {{url: \"{}\"}}",
        redis.url()
    ));
    eventually("Redis to be in use", || {
        (cached.stats()["redis"]["fallback_active"] == false).then_some(())
    });
    let (mut failed, requests) = (0, 400);
    for n in 0..requests {
        if n == requests / 2 {
            redis.kill();
        }
        failed += usize::from(
            cached
                .send(&chat_body(&format!("question {}", n % 40)))
                .status
                != 200,
        );
    }
    eprintln!(
        "{failed} of {requests} requests failed, Redis killed after half of them (document: no degradation)"
    );
    assert_eq!(failed, 0);
    assert_eq!(
        cached.status(&chat_body("question 1")),
        "HIT stored",
        "the fallback to memory is active"
    );
}
