//! The programs of `tests/sdk`, which need Python or Node and the SDKs. Without them the tests say so and prove nothing.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use contract_id::contract;
use serde_json::{Value, json};

use super::{Bench, harness::Program};

/// What the programs are told to check.
fn targets(bench: &Bench) -> Value {
    let target = |name: &str, program: &Program, engine: &Program, apis: &[&str]| json!({"name": name, "url": program.url(), "engine": engine.url(), "apis": apis});
    let all = ["chat", "completions", "embeddings", "responses", "conversations"];
    json!([
        target("engine", &bench.engine, &bench.engine, &all),
        target("native", &bench.native, &bench.native, &["messages", "thinking"]),
        target("router", &bench.router, &bench.engine, &[&all[..], &["messages"]].concat()),
        target("router with a cache", &bench.cached_router, &bench.engine, &["cached"]),
        target("router to native", &bench.native_router, &bench.native, &["messages", "thinking"]),
    ])
}

fn program(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "sdk", name].iter().collect()
}

/// Whether this can be run at all; says so if not.
fn works(mut probe: Command, what: &str) -> bool {
    let works = probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !works {
        eprintln!("SKIPPED: {what}; ./test installs what is needed");
    }
    works
}

fn passes(mut checks: Command) {
    let output = checks.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.lines().filter(|line| line.starts_with("ok ")).count() > 20, "too little was checked: {said}");
}

#[test]
#[contract("CK29", "CH18", "B3")]
fn the_sdks_for_python_work() {
    let python = std::env::var_os("WARMROUTE_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let mut probe = Command::new(&python);
    probe.args(["-c", "import anthropic, openai"]);
    if works(probe, &format!("{} cannot import openai and anthropic", python.display())) {
        let bench = Bench::start();
        let mut checks = Command::new(python);
        // Nothing is written beside the sources.
        checks.arg("-B").arg(program("python/main.py")).arg(targets(&bench).to_string());
        passes(checks);
    }
}

#[test]
#[contract("CK29", "CH18", "B3")]
fn the_sdks_for_node_work() {
    let Some(folder) = std::env::var_os("WARMROUTE_TEST_NODE") else {
        eprintln!("SKIPPED: WARMROUTE_TEST_NODE does not name a folder with the SDKs; ./test installs what is needed");
        return;
    };
    let mut probe = Command::new("node");
    probe.current_dir(&folder).args(["-e", "require('openai'); require('@anthropic-ai/sdk'); require('zod')"]);
    if works(probe, &format!("node finds no SDKs in {}", folder.display())) {
        let bench = Bench::start();
        let mut checks = Command::new("node");
        checks.arg(program("node/main.mjs")).arg(folder).arg(targets(&bench).to_string());
        passes(checks);
    }
}
