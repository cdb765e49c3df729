//! Requests that are kept together by what they mean, and by how they begin.

use std::collections::HashSet;

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RoutedFleet, RoutedReply, RouterQueries, ScriptedEngine, ScriptedReply,
    SimControls, eventually, json_reply, says, words,
};

const SORT: &str = "Write a Python function to sort a list";
const LIGHT: &str = "Explain the process of photosynthesis";

/// Two engines that generate and one for vectors, which are a function of a text's tokens: equal texts have equal vectors,
/// and others are about at right angles.
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

/// Waits until the examples are learnt. Only a few requests are needed: nothing of them stays.
fn learnt(routed: &RoutedFleet) {
    eventually("the examples to be learnt", || {
        let asked = json!({"model": "sim", "messages": [says("user", SORT)]}).to_string();
        let told = RawClient::post(&routed.router.data(), "/v1/route", asked.as_bytes()).json();
        (!told["cluster"].is_null()).then_some(())
    });
}

fn ask(routed: &RoutedFleet, text: &str, headers: &[(&str, &str)]) -> (RoutedReply, Value) {
    let turn = routed.chat(
        &[says("system", "You are terse."), says("user", text)],
        headers,
    );
    let receipt = routed.receipt(&turn);
    (turn, receipt)
}

#[test]
#[contract("V44")]
fn a_prompt_like_a_cluster_s_examples_goes_to_its_workers_and_any_other_to_all() {
    let routed = clustered("round_robin", ["b", "a"], "10s");
    learnt(&routed);
    for _ in 0..3 {
        let (turn, receipt) = ask(&routed, SORT, &[]);
        assert_eq!(turn.worker, "b");
        assert_eq!(receipt["cluster"]["name"], "coding");
        let near = receipt["cluster"]["similarity"].as_f64().expect("a cosine");
        assert!(
            (near - 1.0).abs() < 1e-5,
            "an equal text is as near as can be: {near}"
        );
        assert_eq!(
            receipt["excluded"],
            json!([{"target": {"worker": "a", "dp_rank": 0}, "reason": "other_cluster"}])
        );
        assert_eq!(ask(&routed, LIGHT, &[]).0.worker, "a");
    }
    let elsewhere: HashSet<String> = (0..4)
        .map(|n| {
            let (turn, receipt) = ask(&routed, &format!("something else, number {n}"), &[]);
            assert_eq!(
                (&receipt["cluster"], &receipt["excluded"]),
                (&Value::Null, &json!([]))
            );
            turn.worker
        })
        .collect();
    assert_eq!(
        elsewhere.len(),
        2,
        "what is near no cluster is for everybody"
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
fn a_client_s_own_word_goes_before_what_its_prompt_means() {
    let routed = clustered("round_robin", ["b", "a"], "10s");
    learnt(&routed);
    let (turn, receipt) = ask(&routed, SORT, &[("x-semantic-cluster-id", "science")]);
    assert_eq!(
        (turn.worker.as_str(), &receipt["cluster"]),
        ("a", &json!({"name": "science", "similarity": null}))
    );
    let (_, receipt) = ask(
        &routed,
        SORT,
        &[("x-semantic-cluster-id", "of another router")],
    );
    assert_eq!(
        (&receipt["cluster"], &receipt["excluded"]),
        (&Value::Null, &json!([]))
    );
    // Who names a worker gets it.
    assert_eq!(
        ask(&routed, SORT, &[("x-warmroute-worker", "a")]).0.worker,
        "a"
    );
}

#[test]
#[contract("V44", "V25")]
fn a_cluster_is_a_session_to_the_policies_that_hash() {
    let routed = clustered("consistent_hash", ["a, b", "a"], "10s");
    learnt(&routed);
    let sessions = |text: &str| -> HashSet<String> {
        (0..8)
            .map(|n| {
                ask(&routed, text, &[("x-session-id", &format!("chat {n}"))])
                    .0
                    .worker
            })
            .collect()
    };
    assert_eq!(
        sessions(SORT).len(),
        1,
        "all of a cluster meet on one worker"
    );
    assert_eq!(
        sessions("something else").len(),
        2,
        "others by their own session"
    );
}

#[test]
#[contract("V44")]
fn no_trouble_with_vectors_or_a_cluster_s_workers_fails_a_request() {
    let mut routed = clustered("round_robin", ["b", "a"], "200ms");
    learnt(&routed);
    // The engine for vectors errs, hangs, and goes: requests go without a cluster.
    for fault in ["500", "hang"] {
        // While the last failure is fresh nobody asks.
        eventually("the cluster to be found again", || {
            (!ask(&routed, SORT, &[]).1["cluster"].is_null()).then_some(())
        });
        routed.engines[2].fault(fault, 1);
        let (turn, receipt) = ask(&routed, SORT, &[]);
        assert_eq!(
            (turn.reply.status, &receipt["cluster"]),
            (200, &Value::Null),
            "{fault}"
        );
    }
    eventually("the cluster to be found again", || {
        (!ask(&routed, SORT, &[]).1["cluster"].is_null()).then_some(())
    });
    assert_eq!(ask(&routed, SORT, &[]).0.worker, "b");
    // Where none of its workers can be used, the others serve the cluster.
    routed.engines[1].kill();
    let body =
        json!({"model": "sim", "messages": [says("user", SORT)], "max_tokens": 2}).to_string();
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

#[test]
#[contract("V44")]
fn a_text_that_the_vector_model_does_not_take_costs_only_its_own_request_the_cluster() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    let vectors = |status: &str, body: &str| engine.answer("/v1/embeddings", status, body);
    let near = r#"{"data":[{"index":0,"embedding":[1.0,0.0]}]}"#;
    vectors("200 OK", near);
    let config = "routing:\n  semantic_clusters:\n    enabled: true\n    embedding_model: m\n    timeout: 10s\n    clusters:\n      \
                  - {name: near, examples: [hello], workers: [w]}\n";
    let router = Program::serve_with(config, &[format!("w={}", engine.url())], &[]).ready(1);
    let cluster = || {
        let asked = json!({"model": "m", "messages": [says("user", "hi")]}).to_string();
        RawClient::post(&router.data(), "/v1/route", asked.as_bytes()).json()["cluster"]["name"]
            .clone()
    };
    eventually("the examples to be learnt", || {
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
            "the next text is asked about at once after {status}"
        );
    }
}

/// What a dry run says of each worker: whether it is remembered.
fn remembered(routed: &RoutedFleet, prompt: &str, policy: &str) -> (Value, Vec<String>) {
    let asked = json!({"model": "sim", "prompt": prompt, "policy": policy}).to_string();
    let told = RawClient::post(&routed.router.data(), "/v1/route", asked.as_bytes()).json();
    let rows = told["candidates"].as_array().expect("candidates");
    let remembered = rows.iter().filter(|row| row["terms"]["remembered"] == 1.0);
    let names = remembered
        .map(|row| row["target"]["worker"].as_str().expect("a name").to_owned())
        .collect();
    (told, names)
}

fn forget_caches(routed: &RoutedFleet, prompt: &str) {
    for (name, engine) in ["a", "b", "c"].into_iter().zip(&routed.engines) {
        assert_eq!(
            RawClient::post(&engine.data(), "/reset_prefix_cache", b"").status,
            200
        );
        // As with vLLM, the engine says so with the events of its next step.
        routed.completion(json!({"prompt": "hi"}), &[("x-warmroute-worker", name)]);
    }
    eventually("nobody to hold anything of the prompt", || {
        let (told, _) = remembered(routed, prompt, "kv_aware");
        let rows = told["candidates"].as_array().expect("candidates");
        rows.iter()
            .all(|row| row["predicted_cached_tokens"] == 0)
            .then_some(())
    });
}

#[test]
#[contract("V44")]
fn who_served_a_beginning_is_preferred_while_nobody_is_known_to_hold_it() {
    let keys = "  policy: kv_aware\n  shared_prefix_routing: {enabled: true}\n";
    let routed = RoutedFleet::with_routing(&[&[], &[], &[]], keys);
    let prompt = words("beginning", 120);
    let first = routed.completion(json!({"prompt": prompt}), &[]);
    // As long as the index knows, the memory is not asked.
    let (told, names) = remembered(&routed, &prompt, "kv_aware");
    assert_eq!(
        (told["winner"]["worker"].as_str(), names.len()),
        (Some(first.worker.as_str()), 0)
    );
    forget_caches(&routed, &prompt);
    for policy in ["kv_aware", "cache_aware"] {
        // 256 characters count, and not what comes after.
        let other_end = format!("{}{}", &prompt[..300], words("other", 40));
        for text in [&prompt, &other_end] {
            let (told, names) = remembered(&routed, text, policy);
            assert_eq!(names, std::slice::from_ref(&first.worker), "{policy}");
            assert_eq!(
                told["winner"]["worker"].as_str(),
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
fn nothing_is_remembered_unless_it_is_asked_for() {
    let routed = RoutedFleet::with_routing(&[&[], &[]], "  policy: kv_aware\n");
    let prompt = words("beginning", 120);
    routed.completion(json!({"prompt": prompt}), &[]);
    forget_caches(&routed, &prompt);
    assert!(remembered(&routed, &prompt, "kv_aware").1.is_empty());
}
