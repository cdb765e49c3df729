//! Engines with a malicious tokenizer and template, beside an honest one.

use std::path::PathBuf;

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, chat, eventually,
    json_reply,
};

/// Far more than the router needs, far less than an unbounded value takes.
const MOST_MEMORY: usize = 2 << 30;

fn tokenizer() -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/vllm-real/tiny-qwen/tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).expect("the fixture exists"))
        .expect("the fixture is JSON")
}

/// An engine with one model that serves these files, like the simulated engine.
fn engine(model: &str, tokenizer: &Value, template: &str) -> ScriptedEngine {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply(
        "200 OK",
        "",
        r#"{"id":"fine"}"#,
    )));
    engine.answer(
        "/v1/models",
        "200 OK",
        &json!({"data": [{"id": model}]}).to_string(),
    );
    engine.answer("/sim/tokenizer.json", "200 OK", &tokenizer.to_string());
    engine.answer(
        "/sim/tokenizer_config.json",
        "200 OK",
        &json!({"chat_template": template}).to_string(),
    );
    engine
}

/// The peak memory of a process, in bytes.
fn peak_memory(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .expect("the peak is listed");
    line.split_whitespace()
        .nth(1)
        .and_then(|text| text.parse::<usize>().ok())
        .expect("a number")
        << 10
}

fn send(router: &Program, id: &str, body: &Value) -> RawClient {
    let mut client = RawClient::connect(&router.data());
    client.send(
        "POST",
        "/v1/chat/completions",
        &[("x-request-id", id)],
        body.to_string().as_bytes(),
    );
    client
}

#[test]
#[contract("S64", "S65", "F81", "F82", "F83")]
fn hostile_files_of_engines_neither_crash_nor_stall_the_router() {
    const PLAIN: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";
    const DOUBLING: &str = "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let mut far_id = tokenizer();
    far_id["added_tokens"][0]["id"] = json!(4_294_967_294_u32);
    let mut quadratic = tokenizer();
    quadratic["pre_tokenizer"] = json!({
        "type": "Split", "pattern": {"Regex": "a+b|[^a]+|a"}, "behavior": "Isolated", "invert": false,
    });
    let folding = format!("{{{{ {} }}}}", ["'a' * 99999999"; 300].join(" ~ "));
    let engines = [
        engine("far-id", &far_id, PLAIN),
        engine("doubling", &tokenizer(), DOUBLING),
        engine("folding", &tokenizer(), &folding),
        engine("quadratic", &quadratic, PLAIN),
    ];
    let honest = Program::engine(&["--model", "honest", "--no-kv-events"]);
    let urls: Vec<String> = engines
        .iter()
        .map(ScriptedEngine::url)
        .chain([honest.url()])
        .collect();
    let router = Program::serve_with("routing: {tokenize_budget: 20ms}\n", &urls, &[]).ready(5);

    let long = "a".repeat(30_000);
    let hostile: Vec<_> = (0..40)
        .map(|n| {
            send(
                &router,
                &format!("quadratic-{n}"),
                &chat("quadratic", &long, 1),
            )
        })
        .chain(
            ["far-id", "doubling", "folding"]
                .map(|model| send(&router, model, &chat(model, "hello", 1))),
        )
        .collect();
    for n in 0..4 {
        let reply = send(&router, &format!("honest-{n}"), &chat("honest", "hello", 1)).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    for mut client in hostile {
        let reply = client.reply();
        assert_eq!(
            reply.status,
            200,
            "a request goes on by its text: {}",
            reply.text()
        );
    }
    for id in ["far-id", "doubling", "folding"] {
        assert_eq!(
            router.receipt(id)["prompt"]["source"],
            "text_prefix",
            "{id}"
        );
    }
    let mut attempts = 0;
    eventually("the honest model's tokens to be exact", || {
        attempts += 1;
        let id = format!("exact-{attempts}");
        let reply = send(&router, &id, &chat("honest", "hello again", 1)).reply();
        (reply.status == 200 && router.receipt(&id)["prompt"]["source"] == "tokens").then_some(())
    });
    let peak = peak_memory(router.pid());
    assert!(peak < MOST_MEMORY, "the router had {peak} bytes");
}
