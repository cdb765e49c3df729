//! Repeated requests are answered without an engine: which replies are cached, for which tenant,
//! for how long, and what clients never see.

mod admin;
mod coalescing;
mod eligible;
mod figures;
mod gains;
mod headers;
mod not_cached;
mod profiles;
mod redis_checks;
mod redis_metrics;
mod redis_sentinel;
mod similarity;
mod streams;
mod tenants;
mod tiered;
mod under_faults;

use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chat,
    json_reply,
};

const FINE: &str = r#"{"id":"fine","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;

/// A router with a cache before one engine.
struct CachedRouter {
    router: Program,
    engine: ScriptedEngine,
}

impl CachedRouter {
    /// `cache`: the keys of the section beside `enabled`.
    fn start(cache: &str) -> Self {
        Self::with(
            &format!("response_cache: {{enabled: true{cache}}}\n"),
            fine(),
        )
    }

    fn with(config: &str, reply: ScriptedReply) -> Self {
        let engine = ScriptedEngine::start(reply);
        let router = Program::serve_with(config, &[format!("w={}", engine.url())], &[]).ready(1);
        Self { router, engine }
    }

    fn send(&self, body: &Value) -> RawReply {
        self.send_as(body, &[])
    }

    fn send_as(&self, body: &Value, headers: &[(&str, &str)]) -> RawReply {
        RawClient::post_with(
            &self.router.data(),
            "/v1/chat/completions",
            headers,
            body.to_string().as_bytes(),
        )
    }

    /// The cache status of the reply to this body, from both headers.
    fn status(&self, body: &Value) -> String {
        status(&self.send(body))
    }

    fn stats(&self) -> Value {
        RawClient::get(&self.router.admin(), "/admin/response-cache/stats").json()
    }
}

fn status(reply: &RawReply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    cache_headers(reply)
}

fn cache_headers(reply: &RawReply) -> String {
    let header = |name| reply.header(name).unwrap_or("-");
    format!(
        "{} {}",
        header("x-cache"),
        header("x-warmroute-cache-reason")
    )
}

fn fine() -> ScriptedReply {
    ScriptedReply::whole(json_reply("200 OK", "", FINE))
}

const DONE: &[u8] = b"data: [DONE]\n\n";

fn event(data: &str) -> Vec<u8> {
    format!("data: {data}\n\n").into_bytes()
}

/// A chunk of a chat; `finish` as JSON.
fn chat_chunk(text: &str, finish: &str) -> Vec<u8> {
    event(&format!(
        r#"{{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":{finish}}}]}}"#
    ))
}

/// A request that the cache may answer.
fn chat_body(text: &str) -> Value {
    let mut body = chat("m", text, 4);
    body["temperature"] = json!(0);
    body
}

fn with(mut body: Value, member: &str, value: Value) -> Value {
    body[member] = value;
    body
}

fn without(mut body: Value, member: &str) -> Value {
    body.as_object_mut().expect("an object").remove(member);
    body
}
