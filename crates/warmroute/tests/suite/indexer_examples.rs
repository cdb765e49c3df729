//! The examples of the Conductor API work as documented.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{Program, RawClient, eventually, words};

fn example(name: &str) -> String {
    format!(
        "{}/../../examples/conductor/{name}",
        env!("CARGO_MANIFEST_DIR")
    )
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[test]
#[contract("MC1", "MC2", "MC3", "MC4")]
fn the_example_session_runs_to_its_end_and_shows_each_reply() {
    test_programs::require!(Curl);
    let engine = Program::engine(&["--speed", "20"]);
    let indexer = Program::start(&["indexer", "--listen", "127.0.0.1:0"]);
    let mut session = Command::new("sh");
    session
        .arg(example("session.sh"))
        .env("INDEXER", indexer.url())
        .env("ENGINE", engine.url())
        .env("EVENTS", text(&engine.ready["kv_events"][0]))
        .env("REPLAY", text(&engine.ready["replay"][0]));
    let output = test_programs::limit::output(&mut session, Duration::from_secs(120));
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{shown}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let row = json!({"default": {"engine-1": {"longest_matched": 64, "GPU": 64, "DP": {"0": 64}, "CPU": 0, "DISK": 0}}});
    let answers: Vec<Value> = shown
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), 6, "{shown}");
    assert_eq!(
        answers[0],
        json!({"status": "registered successfully", "instance_id": "engine-1"})
    );
    assert_eq!(answers[1], row);
    assert_eq!(
        answers[2]["services"][0]["endpoint"],
        engine.ready["kv_events"][0]
    );
    assert_eq!(
        answers[3]["models"][0]["instances"][0]["tokens"],
        json!({"gpu": 64, "cpu": 0, "disk": 0})
    );
    assert_eq!(
        answers[4]["removed_instances"],
        json!(["engine-1|default|0"])
    );
    assert_eq!(answers[5], json!({}));
}

/// A child process that ends with its owner.
struct ChildProcess(Child);

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[contract("MC3", "MC4")]
fn the_example_router_sends_a_prompt_to_the_engine_that_holds_it() {
    test_programs::require!(Python);
    let engines = [
        Program::engine(&["--speed", "20"]),
        Program::engine(&["--speed", "20"]),
    ];
    let mut indexer = Program::start(&["indexer", "--listen", "127.0.0.1:0"]);
    let names = ["engine-1", "engine-2"];
    for (engine, name) in engines.iter().zip(names) {
        let body = json!({
            "endpoint": engine.ready["kv_events"][0], "replay_endpoint": engine.ready["replay"][0], "type": "vLLM",
            "modelname": "sim", "instance_id": name, "block_size": 16, "dp_rank": 0,
        });
        assert_eq!(
            RawClient::post(&indexer.data(), "/register", body.to_string().as_bytes()).status,
            200
        );
    }
    let mut command = Command::new(test_programs::python());
    command
        .args([example("router.py"), "0".to_owned(), indexer.url()])
        .stdout(Stdio::piped());
    command.args(
        engines
            .iter()
            .zip(names)
            .map(|(engine, name)| format!("{name}={}", engine.url())),
    );
    let mut router = ChildProcess(command.spawn().expect("python runs"));
    let stdout = router.0.stdout.take().expect("stdout is piped");
    let port = test_programs::limit::first_line(stdout, Duration::from_secs(60))
        .expect("it prints its port");
    let address = format!("127.0.0.1:{port}");

    let send = |seed: &str| {
        let body = json!({"model": "sim", "prompt": words(seed, 300), "max_tokens": 1});
        let reply = RawClient::post(&address, "/v1/completions", body.to_string().as_bytes());
        assert_eq!(reply.status, 200, "{}", reply.text());
        let cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .expect("usage");
        (
            reply
                .header("x-engine")
                .expect("the engine is named")
                .to_owned(),
            cached,
        )
    };
    for seed in ["north", "south", "east"] {
        assert_eq!(send(seed).1, 0);
        // Engines without the prefix take turns until the events have arrived.
        eventually("one engine that has the prompt to get each request", || {
            let again: Vec<_> = (0..4).map(|_| send(seed)).collect();
            let is_settled = again.iter().all(|it| *it == again[0] && it.1 > 0);
            is_settled.then_some(())
        });
    }
    // Without the indexer, requests are still routed.
    indexer.kill();
    let after: Vec<_> = (0..2).map(|_| send("west").0).collect();
    assert_ne!(after[0], after[1], "the engines take turns");
}
