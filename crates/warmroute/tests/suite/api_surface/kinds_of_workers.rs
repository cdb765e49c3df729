//! Health checks of each kind of worker, and the documented examples of custom checks.

use contract_id::contract;

use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, eventually, json_reply,
};

const CUSTOM_PATHS: &str = include_str!(
    "../../../../../tests/fixtures/seed-configs/continuum-health-caching-logging-line0073-backends.yaml"
);
const CUSTOM_POST: &str = include_str!(
    "../../../../../tests/fixtures/seed-configs/continuum-health-caching-logging-line0107-backends.yaml"
);

fn worker(kind: &str, engine: &ScriptedEngine) -> String {
    format!(
        "workers:\n  - {{name: a, url: \"{}\", type: {kind}, models: [m]}}\n",
        engine.url()
    )
}

fn scripted() -> ScriptedEngine {
    ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")))
}

fn state(router: &Program) -> String {
    router.workers()[0]["state"].as_str().unwrap().to_owned()
}

#[test]
#[contract("CH6")]
fn an_anthropic_worker_is_healthy_when_it_rejects_an_empty_message() {
    for status in [
        "200 OK",
        "400 Bad Request",
        "401 Unauthorized",
        "429 Too Many Requests",
    ] {
        let engine = scripted();
        engine.answer("/v1/messages", status, "{}");
        engine.answer("/v1/models", "401 Unauthorized", "{}");
        let _router = Program::serve_with(&worker("anthropic", &engine), &[], &[]).ready(1);
        let probe = eventually("the check", || {
            Some(engine.next_request()).filter(|seen| !seen.line().contains("models"))
        });
        assert_eq!(
            (probe.line().as_str(), &probe.body[..]),
            ("POST /v1/messages HTTP/1.1", &b"{}"[..])
        );
        assert!(probe.header("anthropic-version").is_some());
    }
    let engine = scripted();
    engine.answer("/v1/messages", "403 Forbidden", "{}");
    let router = Program::serve_with(&worker("anthropic", &engine), &[], &[]);
    eventually("the worker to be down", || {
        (state(&router) == "down").then_some(())
    });
}

#[test]
#[contract("CH6", "CH7")]
fn gemini_and_azure_are_probed_at_their_own_paths_and_then_at_the_next() {
    for (kind, first, second) in [
        ("gemini", "/models", "/v1beta/models"),
        ("azure", "/health", "/v1/models"),
    ] {
        let engine = scripted();
        engine.answer(first, "404 Not Found", "{}");
        engine.answer(second, "200 OK", r#"{"data":[{"id":"m"}]}"#);
        let router = Program::serve_with(&worker(kind, &engine), &[], &[]).ready(1);
        assert_eq!(
            engine.next_request().line(),
            format!("GET {first} HTTP/1.1")
        );
        assert_eq!(
            engine.next_request().line(),
            format!("GET {second} HTTP/1.1")
        );
        let reply = RawClient::post(
            &router.data(),
            "/v1/chat/completions",
            br#"{"model":"m","messages":[]}"#,
        );
        assert_eq!(reply.status, 200, "{kind}");
        let engine = scripted();
        // Only a 404 leads to the next path.
        engine.answer(first, "500 Internal Server Error", "{}");
        let router = Program::serve_with(&worker(kind, &engine), &[], &[]);
        eventually("the worker to be down", || {
            (state(&router) == "down").then_some(())
        });
    }
}

#[test]
#[contract("CH8", "CH7", "CH30")]
fn the_documented_example_of_custom_paths_runs_as_written() {
    let engine = scripted();
    engine.answer("/v1/models", "200 OK", r#"{"data":[{"id":"my-model"}]}"#);
    engine.answer("/custom-health", "204 No Content", "");
    let yaml = CUSTOM_PATHS.replace("http://localhost:8000", &engine.url());
    let router = Program::serve_with(&yaml, &[], &[]).ready(1);
    assert_eq!(engine.next_request().line(), "GET /custom-health HTTP/1.1");
    assert_eq!(router.workers()[0]["name"], "vllm-custom");
    drop(router);
    // The first path answers 404 and the next one exists; 503 means that the model is loading.
    engine.answer("/custom-health", "404 Not Found", "");
    let router = Program::serve_with(&yaml, &[], &[]).ready(1);
    drop(router);
    engine.answer("/custom-health", "503 Service Unavailable", "");
    let router = Program::serve_with(&yaml, &[], &[]);
    eventually("the worker to warm up", || {
        (state(&router) == "warming_up").then_some(())
    });
}

#[test]
#[contract("CH8", "CH30")]
fn the_documented_example_of_a_post_runs_as_written() {
    for (status, want) in [
        ("200 OK", "ready"),
        ("400 Bad Request", "ready"),
        ("401 Unauthorized", "ready"),
        ("429 Too Many Requests", "ready"),
        ("503 Service Unavailable", "warming_up"),
        ("204 No Content", "down"),
    ] {
        let engine = scripted();
        engine.answer("/v1/models", "404 Not Found", "{}");
        engine.answer("/api/v1/health", status, "");
        let router = Program::serve_with(
            &CUSTOM_POST.replace("http://localhost:9000", &engine.url()),
            &[],
            &[],
        );
        eventually("the worker to have a parity state", || {
            (state(&router) == want).then_some(())
        });
        let probe = engine.next_request();
        assert_eq!(probe.line(), "POST /api/v1/health HTTP/1.1");
        assert_eq!(
            serde_json::from_slice::<serde_json::Value>(&probe.body).unwrap(),
            serde_json::json!({"check": true})
        );
    }
}
