//! The load that engines other than vLLM report, and what follows from it.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chat,
    eventually, json_reply,
};

/// An engine's page of metrics with this share of its cache in use.
type Page = fn(f64) -> String;

fn sglang(usage: f64) -> String {
    format!(
        "# TYPE sglang:token_usage gauge\nsglang:token_usage{{dp_rank=\"0\",tp_rank=\"0\"}} {usage}\n\
         sglang:num_running_reqs{{dp_rank=\"0\",tp_rank=\"0\"}} 3\n\
         sglang:num_queue_reqs{{dp_rank=\"0\",tp_rank=\"0\",priority=\"\"}} 1\n"
    )
}

fn trtllm(usage: f64) -> String {
    let blocks = json!({"usedNumBlocks": (usage * 1000.0).round(), "maxNumBlocks": 1000});
    json!([{"iter": 1}, {"iter": 2, "numActiveRequests": 3, "numQueuedRequests": 1, "kvCacheStats": blocks}])
        .to_string()
}

fn trtllm_prometheus(usage: f64) -> String {
    format!(
        "trtllm_kv_cache_utilization{{model_name=\"m\"}} {usage}\n\
         trtllm_num_requests_running{{model_name=\"m\"}} 3\ntrtllm_num_requests_waiting{{model_name=\"m\"}} 1\n"
    )
}

/// Two engines of one kind; the first one reports its load.
struct ReportingPair {
    engines: [ScriptedEngine; 2],
    router: Program,
}

impl ReportingPair {
    fn start(kind: &str, path: &str, page: &str) -> Self {
        let fine = ScriptedReply::whole(json_reply("200 OK", "", r#"{"choices":[]}"#));
        let engines = [
            ScriptedEngine::start(fine.clone()),
            ScriptedEngine::start(fine),
        ];
        engines[0].answer(path, "200 OK", page);
        let [a, b] = engines.each_ref().map(ScriptedEngine::url);
        let yaml = format!(
            "workers:\n  - {{name: a, url: \"{a}\", type: {kind}}}\n  - {{name: b, url: \"{b}\", type: {kind}}}\n"
        );
        let flags = ["--busy-threshold", "0.8", "--policy", "round_robin"];
        let router = Program::serve_with(&yaml, &[], &flags).ready(2);
        Self { engines, router }
    }

    /// The load of the first engine, as the router has it.
    fn load(&self) -> Value {
        RawClient::get(&self.router.admin(), "/admin/workers/a").json()["engine"].clone()
    }

    fn reports(&self, usage: Value) {
        eventually("the load to be read", || {
            (self.load()["kv_usage_ratio"] == usage).then_some(())
        });
    }

    fn send(&self) -> RawReply {
        let body = chat("m", "hello", 1).to_string();
        RawClient::post(&self.router.data(), "/v1/chat/completions", body.as_bytes())
    }

    /// The workers of four requests, and the exclusions of the last one.
    fn workers(&self) -> (Vec<String>, Value) {
        let replies: Vec<RawReply> = (0..4).map(|_| self.send()).collect();
        let worker = |reply: &RawReply| reply.header("x-warmroute-worker").unwrap().to_owned();
        let mut workers: Vec<String> = replies.iter().map(worker).collect();
        workers.sort();
        workers.dedup();
        (
            workers,
            self.router.receipt_of(&replies[3])["excluded"].clone(),
        )
    }
}

#[test]
#[contract("DY12")]
fn a_full_engine_of_another_kind_is_excluded_as_busy_and_comes_back() {
    let cases: [(&str, &str, Page); 3] = [
        ("sglang", "/metrics", sglang),
        ("trtllm", "/metrics", trtllm),
        ("trtllm", "/prometheus/metrics", trtllm_prometheus),
    ];
    for (kind, path, page) in cases {
        let pair = ReportingPair::start(kind, path, &page(0.9));
        pair.reports(json!(0.9));
        let load = pair.load();
        assert_eq!(
            (&load["running"], &load["waiting"]),
            (&json!(3), &json!(1)),
            "{path}"
        );
        let busy = json!([{"target": {"worker": "a", "dp_rank": 0}, "reason": "busy"}]);
        assert_eq!(
            pair.workers(),
            (vec!["b".to_owned()], busy),
            "{kind} {path}"
        );
        pair.engines[0].answer(path, "200 OK", &page(0.5));
        pair.reports(json!(0.5));
        let both = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(pair.workers(), (both, json!([])), "{kind} {path}");
    }
}

#[test]
#[contract("DY12")]
fn an_engine_whose_figures_cannot_be_used_or_are_missing_is_never_busy() {
    let pair = ReportingPair::start("trtllm", "/metrics", &trtllm(0.9));
    pair.reports(json!(0.9));
    // An idle TensorRT-LLM has an empty list.
    pair.engines[0].answer("/metrics", "200 OK", "[]");
    pair.reports(Value::Null);
    assert_eq!(pair.workers().0.len(), 2);
    pair.engines[0].answer("/metrics", "200 OK", &trtllm(7.0));
    eventually("the figure to be reported", || {
        pair.router
            .stderr()
            .contains("kvCacheStats.usedNumBlocks")
            .then_some(())
    });
    assert_eq!(pair.load()["kv_usage_ratio"], Value::Null);
    assert_eq!(pair.workers().0.len(), 2);
}

#[test]
#[contract("DY12")]
fn a_model_may_have_a_busy_threshold_of_its_own() {
    let fine = ScriptedReply::whole(json_reply("200 OK", "", r#"{"choices":[]}"#));
    let engines = [
        ScriptedEngine::start(fine.clone()),
        ScriptedEngine::start(fine),
    ];
    let models =
        r#"{"object":"list","data":[{"id":"m","object":"model"},{"id":"n","object":"model"}]}"#;
    for engine in &engines {
        engine.answer("/v1/models", "200 OK", models);
    }
    engines[0].answer("/metrics", "200 OK", &sglang(0.6));
    let [a, b] = engines.each_ref().map(ScriptedEngine::url);
    let yaml = format!(
        "workers:\n  - {{name: a, url: \"{a}\", type: sglang}}\n  - {{name: b, url: \"{b}\", type: sglang}}\n\
         routing: {{policy: round_robin, busy_threshold: 0.9, models: {{n: {{busy_threshold: 0.5}}}}}}\n"
    );
    let router = Program::serve_with(&yaml, &[], &[]).ready(2);
    eventually("the load to be read", || {
        let worker = RawClient::get(&router.admin(), "/admin/workers/a").json();
        (worker["engine"]["kv_usage_ratio"] == 0.6).then_some(())
    });
    let excluded = |model: &str| {
        let body = json!({"model": model, "prompt": "hello"}).to_string();
        let decision = RawClient::post(&router.data(), "/v1/route", body.as_bytes()).json();
        decision["excluded"].clone()
    };
    let busy = json!([{"target": {"worker": "a", "dp_rank": 0}, "reason": "busy"}]);
    assert_eq!((excluded("m"), excluded("n")), (json!([]), busy));
}
