//! Requests grouped by meaning and by prompt prefix.

use std::{collections::HashSet, time::Duration};

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RoutedFleet, RoutedReply, RouterQueries, ScriptedEngine, ScriptedReply,
    SimControls, chat_message, eventually, json_reply, words,
};

const SORT: &str = "Write a Python function to sort a list";
const LIGHT: &str = "Explain the process of photosynthesis";

/// Two engines that generate and one for embeddings, which are a function of a text's tokens: equal
/// texts have equal vectors, and different ones are nearly orthogonal.
fn clustered(policy: &str, workers: [&str; 2], timeout: &str) -> RoutedFleet {
    let [coding, science] = workers;
    let keys = format!(
        "  policy: {policy}\n  semantic_clusters:\n    enabled: true\n    embedding_model: vectors\n    timeout: {timeout}\n    \
         clusters:\n      - {{name: coding, examples: [\"{SORT}\"], workers: [{coding}]}}\n      - {{name: science, \
         examples: [\"{LIGHT}\"], workers: [{science}]}}\n"
    );
    let generates: &[&str] = &[];
    RoutedFleet::with_routing(
        &[
            generates,
            generates,
            &["--model", "vectors", "--no-kv-events"],
        ],
        &keys,
    )
}

/// Waits until the examples are embedded. A few requests suffice, and they leave no trace.
fn wait_for_examples(routed: &RoutedFleet) {
    eventually("the examples to be embedded", || {
        let body = json!({"model": "sim", "messages": [chat_message("user", SORT)]}).to_string();
        let dry_run = RawClient::post(&routed.router.data(), "/v1/route", body.as_bytes()).json();
        (!dry_run["cluster"].is_null()).then_some(())
    });
}

fn send(routed: &RoutedFleet, text: &str, headers: &[(&str, &str)]) -> (RoutedReply, Value) {
    let turn = routed.chat(
        &[
            chat_message("system", "You are terse."),
            chat_message("user", text),
        ],
        headers,
    );
    let receipt = routed.receipt(&turn);
    (turn, receipt)
}

#[test]
#[contract("V44")]
fn a_prompt_similar_to_a_clusters_examples_goes_to_its_workers_and_others_to_all() {
    let routed = clustered("round_robin", ["b", "a"], "10s");
    wait_for_examples(&routed);
    for _ in 0..3 {
        let (turn, receipt) = send(&routed, SORT, &[]);
        assert_eq!(turn.worker, "b");
        assert_eq!(receipt["cluster"]["name"], "coding");
        let near = receipt["cluster"]["similarity"].as_f64().expect("a cosine");
        assert!(
            (near - 1.0).abs() < 1e-5,
            "an equal text is as near as can be: {near}"
        );
        assert_eq!(
            receipt["excluded"],
            json!([
                {"target": {"worker": "c", "dp_rank": 0}, "reason": "model"},
                {"target": {"worker": "a", "dp_rank": 0}, "reason": "other_cluster"},
            ])
        );
        assert_eq!(send(&routed, LIGHT, &[]).0.worker, "a");
    }
    let elsewhere: HashSet<String> = (0..4)
        .map(|n| {
            let (turn, receipt) = send(&routed, &format!("something else, number {n}"), &[]);
            assert_eq!(
                (&receipt["cluster"], &receipt["excluded"]),
                (
                    &Value::Null,
                    &json!([{"target": {"worker": "c", "dp_rank": 0}, "reason": "model"}])
                )
            );
            turn.worker
        })
        .collect();
    assert_eq!(
        elsewhere.len(),
        2,
        "a text near no cluster may use every worker"
    );
    let counted = |result: &str| {
        routed.router.metric(
            "warmroute_semantic_clusters_total",
            &format!("result=\"{result}\""),
        )
    };
    assert!(counted("matched") >= 6.0 && counted("below_threshold") == 4.0);
}

#[test]
#[contract("V44")]
fn a_cluster_header_overrides_the_meaning_of_the_prompt() {
    let routed = clustered("round_robin", ["b", "a"], "10s");
    wait_for_examples(&routed);
    let (turn, receipt) = send(&routed, SORT, &[("x-semantic-cluster-id", "science")]);
    assert_eq!(
        (turn.worker.as_str(), &receipt["cluster"]),
        ("a", &json!({"name": "science", "similarity": null}))
    );
    let (_, receipt) = send(
        &routed,
        SORT,
        &[("x-semantic-cluster-id", "of another router")],
    );
    assert_eq!(
        (&receipt["cluster"], &receipt["excluded"]),
        (
            &Value::Null,
            &json!([{"target": {"worker": "c", "dp_rank": 0}, "reason": "model"}])
        )
    );
    // A pinned worker overrides the cluster.
    assert_eq!(
        send(&routed, SORT, &[("x-warmroute-worker", "a")]).0.worker,
        "a"
    );
}

#[test]
#[contract("V44", "V25")]
fn a_cluster_is_the_session_key_of_the_hash_policies() {
    let routed = clustered("consistent_hash", ["a, b", "a"], "10s");
    wait_for_examples(&routed);
    let sessions = |text: &str| -> HashSet<String> {
        (0..8)
            .map(|n| {
                send(&routed, text, &[("x-session-id", &format!("chat {n}"))])
                    .0
                    .worker
            })
            .collect()
    };
    assert_eq!(
        sessions(SORT).len(),
        1,
        "all requests of a cluster go to one worker"
    );
    assert_eq!(
        sessions("something else").len(),
        2,
        "other requests by their own session"
    );
}

#[test]
#[contract("V44")]
fn failures_of_the_embedding_model_or_of_cluster_workers_fail_no_request() {
    let mut routed = clustered("round_robin", ["b", "a"], "200ms");
    wait_for_examples(&routed);
    // The embedding engine fails, hangs and disappears; requests are routed without a cluster.
    for fault in ["500", "hang"] {
        // After a recent failure the embedding engine is not called.
        eventually("the cluster to be found again", || {
            (!send(&routed, SORT, &[]).1["cluster"].is_null()).then_some(())
        });
        routed.engines[2].fault(fault, 1);
        let (turn, receipt) = send(&routed, SORT, &[]);
        assert_eq!(
            (turn.reply.status, &receipt["cluster"]),
            (200, &Value::Null),
            "{fault}"
        );
    }
    eventually("the cluster to be found again", || {
        (!send(&routed, SORT, &[]).1["cluster"].is_null()).then_some(())
    });
    assert_eq!(send(&routed, SORT, &[]).0.worker, "b");
    // If none of its workers is usable, the other workers serve the cluster.
    routed.engines[1].kill();
    let body = json!({"model": "sim", "messages": [chat_message("user", SORT)], "max_tokens": 2})
        .to_string();
    let reply = RawClient::post(
        &routed.router.data(),
        "/v1/chat/completions",
        body.as_bytes(),
    );
    assert_eq!(
        (reply.status, reply.header("x-warmroute-worker")),
        (200, Some("a")),
        "{}",
        reply.text()
    );
    routed.engines[2].kill();
    let reply = RawClient::post(
        &routed.router.data(),
        "/v1/chat/completions",
        body.as_bytes(),
    );
    assert_eq!(
        (reply.status, reply.header("x-warmroute-worker")),
        (200, Some("a")),
        "{}",
        reply.text()
    );
}

fn embedding(direction: &[f32]) -> String {
    json!({"data": [{"index": 0, "embedding": direction}]}).to_string()
}

/// A router before this engine, with the cluster `near`, whose only worker it is, and more keys.
fn with_a_cluster(engine: &ScriptedEngine, keys: &str) -> Program {
    let config = format!(
        "routing:\n  semantic_clusters:\n    enabled: true\n    embedding_model: m\n    {keys}\n    clusters:\n      \
         - {{name: near, examples: [hello], workers: [w]}}\n"
    );
    Program::serve_with(&config, &[format!("w={}", engine.url())], &[]).ready(1)
}

/// The name of the cluster that a prompt belongs to now.
fn cluster(router: &Program) -> Value {
    let body = json!({"model": "m", "messages": [chat_message("user", "hi")]}).to_string();
    RawClient::post(&router.data(), "/v1/route", body.as_bytes()).json()["cluster"]["name"].clone()
}

#[test]
#[contract("V44")]
fn a_prompt_belongs_to_a_cluster_from_the_configured_similarity_on() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    for (keys, of_80_percent) in [
        ("timeout: 10s", json!("near")),
        ("timeout: 10s\n    threshold: 0.9", Value::Null),
    ] {
        let vectors = |direction| {
            engine.answer("/v1/embeddings", "200 OK", &embedding(direction));
        };
        vectors(&[1.0, 0.0]);
        let router = with_a_cluster(&engine, keys);
        eventually("the examples to be embedded", || {
            (cluster(&router) == "near").then_some(())
        });
        vectors(&[0.8, 0.6]);
        assert_eq!(cluster(&router), of_80_percent, "{keys}");
    }
}

#[test]
#[contract("V44")]
fn a_request_waits_for_its_embedding_as_long_as_configured() {
    let near = json_reply("200 OK", "", &embedding(&[1.0, 0.0]));
    let engine = ScriptedEngine::start(ScriptedReply::whole(near.clone()));
    let router = with_a_cluster(&engine, "timeout: 30s");
    eventually("the examples to be embedded", || {
        (cluster(&router) == "near").then_some(())
    });
    // Twice the default.
    engine.once(ScriptedReply::Late(Duration::from_secs(1), near));
    assert_eq!(cluster(&router), "near");
}

#[test]
#[contract("V44")]
fn a_text_that_the_embedding_model_rejects_affects_only_its_own_request() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    let vectors = |status: &str, body: &str| engine.answer("/v1/embeddings", status, body);
    let near = &embedding(&[1.0, 0.0]);
    vectors("200 OK", near);
    let router = with_a_cluster(&engine, "timeout: 10s");
    let cluster = || cluster(&router);
    eventually("the examples to be embedded", || {
        (cluster() == "near").then_some(())
    });
    for status in [
        "400 Bad Request",
        "413 Content Too Large",
        "422 Unprocessable",
    ] {
        vectors(status, r#"{"error":{"message":"the text is too long"}}"#);
        assert_eq!(cluster(), Value::Null, "{status}");
        vectors("200 OK", near);
        assert_eq!(
            cluster(),
            "near",
            "the next text is embedded at once after {status}"
        );
    }
}

/// A dry run and the workers that the prefix memory names in it.
fn remembered(routed: &RoutedFleet, prompt: &str, policy: &str) -> (Value, Vec<String>) {
    let body = json!({"model": "sim", "prompt": prompt, "policy": policy}).to_string();
    let dry_run = RawClient::post(&routed.router.data(), "/v1/route", body.as_bytes()).json();
    let rows = dry_run["candidates"].as_array().expect("candidates");
    let remembered = rows.iter().filter(|row| row["terms"]["remembered"] == 1.0);
    let names = remembered
        .map(|row| row["target"]["worker"].as_str().expect("a name").to_owned())
        .collect();
    (dry_run, names)
}

fn forget_caches(routed: &RoutedFleet, prompt: &str) {
    for (name, engine) in ["a", "b", "c"].into_iter().zip(&routed.engines) {
        assert_eq!(
            RawClient::post(&engine.data(), "/reset_prefix_cache", b"").status,
            200
        );
        // Like vLLM, the engine announces the reset with the events of its next step.
        routed.completion(json!({"prompt": "hi"}), &[("x-warmroute-worker", name)]);
    }
    eventually("no target to hold a block of the prompt", || {
        let (dry_run, _) = remembered(routed, prompt, "kv_aware");
        let rows = dry_run["candidates"].as_array().expect("candidates");
        rows.iter()
            .all(|row| row["predicted_cached_tokens"] == 0)
            .then_some(())
    });
}

#[test]
#[contract("V44")]
fn the_last_worker_of_a_prefix_is_preferred_while_no_target_holds_it() {
    let keys = "  policy: kv_aware\n  shared_prefix_routing: {enabled: true}\n";
    let routed = RoutedFleet::with_routing(&[&[], &[], &[]], keys);
    let prompt = words("beginning", 120);
    let first = routed.completion(json!({"prompt": prompt}), &[]);
    // While the index knows a holder, the prefix memory is not used.
    let (dry_run, names) = remembered(&routed, &prompt, "kv_aware");
    assert_eq!(
        (dry_run["winner"]["worker"].as_str(), names.len()),
        (Some(first.worker.as_str()), 0)
    );
    forget_caches(&routed, &prompt);
    for policy in ["kv_aware", "cache_aware"] {
        // Only the first 256 characters count.
        let other_end = format!("{}{}", &prompt[..300], words("other", 40));
        for text in [&prompt, &other_end] {
            let (dry_run, names) = remembered(&routed, text, policy);
            assert_eq!(names, std::slice::from_ref(&first.worker), "{policy}");
            assert_eq!(
                dry_run["winner"]["worker"].as_str(),
                Some(first.worker.as_str()),
                "{policy}"
            );
        }
        assert!(
            remembered(&routed, &words("another", 120), policy)
                .1
                .is_empty()
        );
        assert!(remembered(&routed, &prompt[1..], policy).1.is_empty());
    }
}

#[test]
#[contract("V44")]
fn prefix_memory_is_off_unless_configured() {
    let routed = RoutedFleet::with_routing(&[&[], &[]], "  policy: kv_aware\n");
    let prompt = words("beginning", 120);
    routed.completion(json!({"prompt": prompt}), &[]);
    forget_caches(&routed, &prompt);
    assert!(remembered(&routed, &prompt, "kv_aware").1.is_empty());
}
