//! Hooks that are called before a request is routed.

use contract_id::contract;
use serde_json::Value;

use crate::harness::{
    Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine, ScriptedReply, chat,
    eventually, json_reply,
};

struct HookFixture {
    router: Program,
    engine: ScriptedEngine,
    hook: ScriptedEngine,
}

/// A router whose hook sends this reply, with more keys of the hook, each after a comma. Without a
/// time limit among them it has a minute.
fn guarded(answer: ScriptedReply, keys: &str) -> HookFixture {
    let limit = if keys.contains("timeout") {
        ""
    } else {
        ", timeout: 60s"
    };
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"id":"fine"}"#,
    )));
    let hook = ScriptedEngine::start(answer);
    let config = format!(
        "compat: {{headers: [vllm-router]}}\nserver: {{max_body_bytes: 64KiB}}\npre_routing_hooks:\n  - {{name: guard, url: \"{}/check\"{limit}{keys}}}\n",
        hook.url()
    );
    let router = Program::serve_with(&config, &[format!("w={}", engine.url())], &[]).ready(1);
    HookFixture {
        router,
        engine,
        hook,
    }
}

impl HookFixture {
    fn send(&self, model: &str) -> RawReply {
        RawClient::post(
            &self.router.data(),
            "/v1/chat/completions",
            chat(model, "hi", 1).to_string().as_bytes(),
        )
    }

    fn counted(&self, result: &str) -> f64 {
        self.router.metric(
            "warmroute_hooks_total",
            &format!("hook=\"guard\",result=\"{result}\""),
        )
    }
}

fn hook_reply(body: &str) -> ScriptedReply {
    ScriptedReply::whole(json_reply("200 OK", "", body))
}

#[test]
#[contract("V44", "V42")]
fn a_hook_gets_the_request_and_lets_it_pass_unchanged() {
    let guarded = guarded(hook_reply(r#"{"action":"allow"}"#), "");
    let reply = guarded.send("m");
    assert_eq!(
        (reply.status, reply.header("x-vllm-router-hooks")),
        (200, Some("guard=allow")),
        "{}",
        reply.text()
    );
    assert_eq!(reply.header("x-warmroute-rewrites"), None);
    let call = guarded.hook.next_request();
    assert_eq!(call.line(), "POST /check HTTP/1.1");
    let call_body: Value = serde_json::from_slice(&call.body).expect("JSON");
    assert_eq!(
        call_body["request_id"].as_str(),
        reply.header("x-request-id")
    );
    assert_eq!(
        (&call_body["route"], &call_body["model"]),
        (&"/v1/chat/completions".into(), &"m".into())
    );
    assert_eq!(call_body["body"], chat("m", "hi", 1));
    assert_eq!(
        guarded.engine.next_request().body,
        chat("m", "hi", 1).to_string().as_bytes()
    );
    assert_eq!(guarded.counted("allow"), 1.0);
}

#[test]
#[contract("V44")]
fn a_rejected_request_reaches_no_engine_and_gets_the_reason() {
    let guarded = guarded(
        hook_reply(r#"{"action":"reject","status":451,"message":"not here"}"#),
        "",
    );
    let reply = guarded.send("m");
    assert_eq!(
        (reply.status, reply.error_code().as_str()),
        (451, "hook_rejected")
    );
    assert_eq!(reply.header("x-vllm-router-hooks"), Some("guard=reject"));
    assert!(reply.text().contains("not here"), "{}", reply.text());
    guarded.hook.script(hook_reply(r#"{"action":"reject"}"#));
    let reply = guarded.send("m");
    assert_eq!(reply.status, 403);
    assert!(reply.text().contains("guard"), "{}", reply.text());
    assert_eq!(
        (guarded.engine.requests(), guarded.counted("reject")),
        (0, 2.0)
    );
    guarded.router.wait_until_idle();
}

#[test]
#[contract("V44")]
fn a_rejection_uses_the_configured_text_where_there_is_one() {
    let guarded = guarded(
        hook_reply(r#"{"action":"reject","message":"inner"}"#),
        ", on_reject: {status: 422, message: \"house rules\"}",
    );
    let reply = guarded.send("m");
    assert_eq!(reply.status, 422);
    assert!(
        reply.text().contains("house rules") && !reply.text().contains("inner"),
        "{}",
        reply.text()
    );
}

#[test]
#[contract("V44")]
fn a_transformed_body_goes_to_the_engine_and_the_reply_reports_it() {
    let other = r#"{"model":"m", "messages":[{"role":"user","content":"[name]"}], "x" : 1}"#;
    let guarded = guarded(
        hook_reply(&format!(r#"{{"action":"transform","body":{other}}}"#)),
        "",
    );
    // The client's model name is unknown to the workers; the hook's is known.
    let reply = guarded.send("public-name");
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("x-warmroute-rewrites"), Some("hook"));
    assert_eq!(
        String::from_utf8_lossy(&guarded.engine.next_request().body),
        other
    );
    guarded.router.wait_until_idle();
}

#[test]
#[contract("F95", "V44")]
fn without_a_usable_hook_reply_the_request_continues_or_fails_as_configured() {
    let huge = format!(
        r#"{{"action":"transform","body":{{"model":"m","x":"{}"}}}}"#,
        "y".repeat(100 << 10)
    );
    let flood = ScriptedReply::Endless(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 104857600\r\n\r\n"
            .to_vec(),
        vec![b' '; 64 << 10],
    );
    let faults = [
        ScriptedReply::Silence,
        ScriptedReply::whole(json_reply("500 Oops", "", "{}")),
        ScriptedReply::Cut(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{".to_vec()),
        hook_reply("not json"),
        hook_reply(r#"{"action":"maybe"}"#),
        hook_reply(&huge),
        flood,
    ];
    let strict = guarded(ScriptedReply::Silence, ", timeout: 300ms");
    let lenient = guarded(ScriptedReply::Silence, ", timeout: 300ms, on_error: allow");
    for (number, fault) in (1..).zip(faults) {
        strict.hook.script(fault.clone());
        let reply = strict.send("m");
        assert_eq!(
            (reply.status, reply.error_code().as_str()),
            (503, "hook_failed"),
            "{fault:?}"
        );
        assert!(reply.header("retry-after").is_some());
        lenient.hook.script(fault);
        let reply = lenient.send("m");
        assert_eq!(
            (reply.status, reply.header("x-vllm-router-hooks")),
            (200, Some("guard=error"))
        );
        assert_eq!(
            lenient.engine.next_request().body,
            chat("m", "hi", 1).to_string().as_bytes()
        );
        assert_eq!(strict.counted("error"), f64::from(number));
    }
    assert_eq!(strict.engine.requests(), 0);
    strict.router.wait_until_idle();
    lenient.router.wait_until_idle();
}

#[test]
#[contract("V44")]
fn a_hook_is_called_only_for_its_models_and_only_for_generations() {
    let guarded = guarded(
        hook_reply(r#"{"action":"reject"}"#),
        ", models: [\"gpt-*\"]",
    );
    assert_eq!(guarded.send("m").status, 200);
    assert_eq!(guarded.send("gpt-4").status, 403);
    let body = chat("gpt-4", "hi", 1).to_string();
    let route = RawClient::post(&guarded.router.data(), "/v1/route", body.as_bytes());
    assert_eq!(route.error_code(), "model_not_found");
    assert_eq!(guarded.hook.requests(), 1);
}

#[test]
#[contract("V44")]
fn a_client_that_leaves_ends_the_hook_call_too() {
    let guarded = guarded(ScriptedReply::Silence, ", timeout: 60s");
    let client = RawClient::chat(&guarded.router.data(), &chat("m", "hi", 1));
    guarded.hook.next_request();
    drop(client);
    guarded.hook.hang_up();
    guarded.router.wait_until_idle();
}

#[test]
#[contract("S39", "F95")]
fn a_hook_at_a_metadata_address_is_not_called() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    let config =
        "pre_routing_hooks: [{name: meta, url: \"http://169.254.169.254/latest\", timeout: 1h}]\n";
    let router = Program::serve_with(config, &[format!("w={}", engine.url())], &[]).ready(1);
    let reply = RawClient::post(
        &router.data(),
        "/v1/chat/completions",
        chat("m", "hi", 1).to_string().as_bytes(),
    );
    // The call is refused, not awaited: its timeout is an hour.
    assert_eq!(reply.status, 503);
    eventually("the reason in the log", || {
        router.stderr().contains("metadata").then_some(())
    });
}
