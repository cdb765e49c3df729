//! Limits of tokens per minute.
//!
//! Prompts are token ids, whose number the router knows exactly. A minute's worth arrives slowly
//! enough for tests that take seconds: 600 tokens per minute are 10 a second.

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    PieceGate, Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply,
    chunk, eventually, json_reply, stream_head, stream_reply,
};

const COMPLETIONS: &str = "/v1/completions";

/// A router with one engine that answers as it is told, tenant `a` with these limits, and tenant
/// `b` without any.
struct LimitedRouter {
    router: Program,
    engine: ScriptedEngine,
}

impl LimitedRouter {
    fn start(limits: &str, replies: ScriptedReply) -> Self {
        let engine = ScriptedEngine::start(replies);
        let yaml = format!(
            "request: {{max_retries: 0}}\napi_keys:\n- {{name: a, key: sk-a, {limits}}}\n- {{name: b, key: sk-b}}\n"
        );
        let router = Program::serve_with(&yaml, &[engine.url()], &[]).ready(1);
        Self { router, engine }
    }

    fn post(&self, key: &str, path: &str, body: &Value) -> RawReply {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", &*bearer)];
        RawClient::post_with(
            &self.router.data(),
            path,
            &headers,
            body.to_string().as_bytes(),
        )
    }

    /// Sends a completion with a prompt of this many tokens for tenant `a`.
    fn complete(&self, tokens: usize) -> RawReply {
        self.post("sk-a", COMPLETIONS, &completion(tokens))
    }

    /// Sends a completion whose reply is a stream, and reads the reply's head.
    fn stream(&self, tokens: usize) -> (RawClient, RawReply) {
        let mut body = completion(tokens);
        body["stream"] = json!(true);
        let mut client = RawClient::connect(&self.router.data());
        let headers = [("authorization", "Bearer sk-a")];
        client.send("POST", COMPLETIONS, &headers, body.to_string().as_bytes());
        let head = client.head();
        assert_eq!(head.status, 200);
        (client, head)
    }

    /// Waits until so many requests of tenant `a` run.
    fn wait_for_running(&self, count: f64) {
        eventually("this many requests to run", || {
            let running = self
                .router
                .metric("warmroute_tenant_in_flight", "tenant=\"a\"");
            (running == count).then_some(())
        });
    }
}

fn completion(tokens: usize) -> Value {
    json!({"model": "m", "prompt": vec![5; tokens], "max_tokens": 1})
}

/// A whole reply that reports these tokens.
fn reported(prompt: u32, output: u32) -> ScriptedReply {
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": output,
        "total_tokens": prompt + output});
    let body = json!({"id": "c", "object": "text_completion", "model": "m", "usage": usage,
        "choices": [{"index": 0, "finish_reason": "stop", "text": "hi"}]});
    ScriptedReply::whole(json_reply("200 OK", "", &body.to_string()))
}

fn event(text: &str) -> String {
    let choice = json!({"choices": [{"index": 0, "text": text}]});
    format!("data: {choice}\n\n")
}

/// A stream of two events and its end marker, without usage; the gate lets the first event through,
/// then the rest.
fn gated(gate: &PieceGate) -> ScriptedReply {
    let (first, second) = (event("a"), event("b"));
    let reply = stream_reply(&[first.as_bytes(), second.as_bytes(), b"data: [DONE]\n\n"]);
    let (begin, rest) = reply.split_at(stream_head().len() + chunk(first.as_bytes()).len());
    ScriptedReply::Gated(vec![begin.to_vec(), rest.to_vec()], gate.clone())
}

fn limited(reply: &RawReply, limit: &str) {
    let found = (reply.status, reply.error_code());
    assert_eq!(found, (429, "token_limited".to_owned()), "{}", reply.text());
    assert_eq!(reply.header("x-ratelimit-limit"), Some(limit));
    let seconds: u32 = (reply.header("retry-after").expect("a time").parse()).expect("a number");
    assert!((1..=60).contains(&seconds), "{seconds}");
}

#[test]
#[contract("S72")]
fn prompt_tokens_count_as_used_from_the_start_to_what_the_worker_reports() {
    let limits = "prompt_tokens_per_minute: 600";
    let shared = LimitedRouter::start(limits, reported(20, 1));
    let gate = PieceGate::new();
    shared.engine.once(gated(&gate));
    gate.open();
    let (mut client, head) = shared.stream(500);
    let refused = shared.complete(200);
    limited(&refused, "600");
    assert!(
        refused.text().contains("prompt tokens"),
        "{}",
        refused.text()
    );
    assert_eq!(shared.engine.requests(), 1, "no engine sees it");
    let other = shared.post("sk-b", COMPLETIONS, &completion(9000));
    assert_eq!(other.status, 200, "{}", other.text());
    // A stream without usage used what was reserved.
    gate.open();
    client.body(head);
    shared.wait_for_running(0.0);
    limited(&shared.complete(200), "600");
    let page = RawClient::get(&shared.router.admin(), "/metrics").text();
    let line = "warmroute_tenant_limited_total{tenant=\"a\",limit=\"tokens\"} 2";
    assert!(page.lines().any(|there| there == line), "{page}");
}

#[test]
#[contract("S72")]
fn the_end_of_a_request_corrects_what_was_reserved() {
    let limits = "prompt_tokens_per_minute: 600, output_tokens_per_minute: 600";
    // The worker found most of the prompt to be no prompt.
    let shared = LimitedRouter::start(limits, reported(20, 1));
    for _ in 0..3 {
        assert_eq!(shared.complete(500).status, 200);
        shared.wait_for_running(0.0);
    }
    // More than expected leaves a debt, whose tenant is refused before its prompt is read.
    shared.engine.once(reported(20, 5000));
    assert_eq!(shared.complete(1).status, 200);
    shared.wait_for_running(0.0);
    limited(&shared.complete(1), "600");
    assert_eq!(shared.engine.requests(), 4);
}

#[test]
#[contract("S72")]
fn a_response_in_the_background_counts_as_its_client_fetches_it() {
    let shared = LimitedRouter::start("output_tokens_per_minute: 600", reported(1, 1));
    let response = |usage: Value| {
        let response = json!({"id": "resp_1", "object": "response", "usage": usage});
        response.to_string()
    };
    let queued = json_reply("200 OK", "", &response(Value::Null));
    shared.engine.once(ScriptedReply::whole(queued));
    let body = json!({"model": "m", "input": "hi", "background": true, "max_output_tokens": 1});
    let created = shared.post("sk-a", "/v1/responses", &body);
    assert_eq!(created.status, 200, "{}", created.text());
    shared.wait_for_running(0.0);
    let finished = json!({"input_tokens": 1, "output_tokens": 5000, "total_tokens": 5001});
    for (key, usage, status, passes) in [
        ("sk-a", Value::Null, 200, true),
        ("sk-b", finished.clone(), 404, true),
        ("sk-a", finished, 200, false),
    ] {
        let target = "/v1/responses/resp_1";
        shared.engine.answer(target, "200 OK", &response(usage));
        let mut client = RawClient::connect(&shared.router.data());
        let bearer = format!("Bearer {key}");
        client.send("GET", target, &[("authorization", &*bearer)], b"");
        assert_eq!(client.reply().status, status);
        shared.wait_for_running(0.0);
        let next = shared.complete(1);
        if passes {
            assert_eq!(next.status, 200, "{}", next.text());
            shared.wait_for_running(0.0);
        } else {
            limited(&next, "600");
        }
    }
}

#[test]
#[contract("S72")]
fn a_request_that_no_worker_computed_uses_nothing() {
    let limits = "prompt_tokens_per_minute: 600";
    let failed = json_reply("400 Bad Request", "", r#"{"error":{"message":"no"}}"#);
    let shared = LimitedRouter::start(limits, ScriptedReply::whole(failed));
    for _ in 0..3 {
        assert_eq!(shared.complete(600).status, 400);
        shared.wait_for_running(0.0);
    }
    let unknown = json!({"model": "none", "prompt": vec![5; 600]});
    assert_eq!(shared.post("sk-a", COMPLETIONS, &unknown).status, 404);
    assert_eq!(shared.complete(600).status, 400);
}

#[test]
#[contract("S72")]
fn a_client_that_leaves_has_used_its_prompt_and_the_events_it_got() {
    let limits = "prompt_tokens_per_minute: 600, output_tokens_per_minute: 60";
    let shared = LimitedRouter::start(limits, reported(1, 1));
    let gate = PieceGate::new();
    let many: Vec<String> = (0..70).map(|_| event("x")).collect();
    let pieces: Vec<&[u8]> = many.iter().map(String::as_bytes).collect();
    let reply = stream_reply(&pieces);
    let (begin, rest) = reply.split_at(reply.len() - 5);
    shared.engine.once(ScriptedReply::Gated(
        vec![begin.to_vec(), rest.to_vec()],
        gate.clone(),
    ));
    gate.open();
    let (mut client, _head) = shared.stream(500);
    let mut read = String::new();
    while read.matches("data:").count() < 70 {
        read.push_str(&String::from_utf8_lossy(
            &client.chunk().expect("another event"),
        ));
    }
    drop(client);
    shared.wait_for_running(0.0);
    let refused = shared.complete(1);
    limited(&refused, "60");
    assert!(
        refused.text().contains("output tokens"),
        "{}",
        refused.text()
    );
}

#[test]
#[contract("S72")]
fn a_client_that_leaves_pays_for_the_length_of_the_events_it_got() {
    let limits = "output_tokens_per_minute: 60";
    let shared = LimitedRouter::start(limits, reported(1, 1));
    let gate = PieceGate::new();
    let long = event(&"x".repeat(400));
    let reply = stream_reply(&[long.as_bytes(), b"data: [DONE]\n\n"]);
    let (begin, rest) = reply.split_at(stream_head().len() + chunk(long.as_bytes()).len());
    shared.engine.once(ScriptedReply::Gated(
        vec![begin.to_vec(), rest.to_vec()],
        gate.clone(),
    ));
    gate.open();
    let (mut client, _head) = shared.stream(1);
    assert_eq!(client.chunk().expect("an event"), long.as_bytes());
    drop(client);
    shared.wait_for_running(0.0);
    limited(&shared.complete(1), "60");
}

/// A reply of SGLang's own API with these counts.
fn native(index: u32, prompt: u32, output: u32) -> Value {
    json!({"text": "a", "index": index, "meta_info": {"finish_reason": {"type": "stop"},
        "prompt_tokens": prompt, "completion_tokens": output}})
}

#[test]
#[contract("S72")]
fn replies_to_several_prompts_of_an_engines_own_api_are_counted_together() {
    let both = [native(0, 1, 400), native(1, 1, 400)];
    let events = both.each_ref().map(|reply| format!("data: {reply}\n\n"));
    let pieces: Vec<_> = events.iter().map(|event| event.as_bytes()).collect();
    let list = json_reply("200 OK", "", &json!(both).to_string());
    for (stream, reply) in [(false, list), (true, stream_reply(&pieces))] {
        let limits = "output_tokens_per_minute: 600";
        let shared = LimitedRouter::start(limits, ScriptedReply::whole(reply));
        let body = json!({"model": "m", "input_ids": [[5], [5]], "stream": stream});
        let reply = shared.post("sk-a", "/generate", &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        shared.wait_for_running(0.0);
        limited(&shared.complete(1), "600");
    }
}

#[test]
#[contract("S72")]
fn the_counts_of_a_long_reply_are_read_at_its_end() {
    let long = "x".repeat(1 << 21);
    let body = json!({"id": "c", "object": "text_completion", "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "text": long}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 5000, "total_tokens": 5001}});
    let reply = json_reply("200 OK", "", &body.to_string());
    let limits = "output_tokens_per_minute: 600";
    let shared = LimitedRouter::start(limits, ScriptedReply::whole(reply));
    assert_eq!(shared.complete(1).status, 200);
    shared.wait_for_running(0.0);
    limited(&shared.complete(1), "600");
}

#[test]
#[contract("S72")]
fn replies_whose_counts_are_needed_are_asked_for_without_an_encoding() {
    let shared = LimitedRouter::start("output_tokens_per_minute: 600", reported(1, 1));
    shared.engine.forget();
    for (bearer, encoding) in [("Bearer sk-a", "identity"), ("Bearer sk-b", "gzip")] {
        let headers = [("authorization", bearer), ("accept-encoding", "gzip")];
        let body = completion(1).to_string();
        let data = shared.router.data();
        let reply = RawClient::post_with(&data, COMPLETIONS, &headers, body.as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let sent = shared.engine.next_request().header("accept-encoding");
        assert_eq!(sent.as_deref(), Some(encoding));
    }
}

#[test]
#[contract("S72")]
fn all_replies_to_a_request_are_reserved_by_their_usual_length() {
    let limits = "output_tokens_per_minute: 600";
    let shared = LimitedRouter::start(limits, reported(1, 1));
    let gate = PieceGate::new();
    shared.engine.once(gated(&gate));
    gate.open();
    let (_client, _head) = shared.stream(1);
    let body = |n: u32, prompts: usize, most: u32| {
        json!({"model": "m", "n": n, "max_tokens": most,
        "prompt": vec![vec![5]; prompts]})
    };
    // A reply has 200 tokens as long as none was seen, or what it may have at most.
    for (n, prompts, most, passes) in [
        (2, 2, 8000, false),
        (1, 4, 8000, false),
        (5, 1, 150, false),
        (8, 2, 20, true),
        (1, 1, 8000, true),
    ] {
        let reply = shared.post("sk-a", COMPLETIONS, &body(n, prompts, most));
        if passes {
            assert_eq!(reply.status, 200, "{n} {prompts} {most}: {}", reply.text());
            shared.wait_for_running(1.0);
        } else {
            limited(&reply, "600");
        }
    }
    let embedded = json!({"model": "m", "input": vec!["x"; 100]});
    assert_eq!(shared.post("sk-a", "/v1/embeddings", &embedded).status, 200);
}
