//! The programs of `tests/sdk`, which need Python or Node and the SDKs. Without them the tests are
//! skipped.

use std::{path::PathBuf, process::Command, time::Duration};

use contract_id::contract;
use serde_json::{Value, json};

use super::SdkBench;
use crate::harness::Program;

/// A program that runs longer counts as hanging.
const LIMIT: Duration = Duration::from_secs(240);

/// The targets that the programs check.
fn targets(bench: &SdkBench) -> Value {
    let target = |name: &str, program: &Program, engine: &Program, apis: &[&str]| json!({"name": name, "url": program.url(), "engine": engine.url(), "apis": apis});
    let all = [
        "chat",
        "completions",
        "embeddings",
        "responses",
        "conversations",
        "stored",
        "audio",
        "realtime",
    ];
    json!([
        target("engine", &bench.engine, &bench.engine, &all),
        target(
            "native",
            &bench.native,
            &bench.native,
            &["messages", "thinking"]
        ),
        target(
            "router",
            &bench.router,
            &bench.engine,
            &[&all[..], &["messages", "counted"]].concat()
        ),
        target(
            "router with a cache",
            &bench.cached_router,
            &bench.engine,
            &["cached"]
        ),
        target(
            "router to native",
            &bench.native_router,
            &bench.native,
            &["messages", "thinking"]
        ),
    ])
}

fn program(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "sdk", name]
        .iter()
        .collect()
}

fn passes(mut checks: Command) {
    let output = test_programs::limit::output(&mut checks, LIMIT);
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{output_text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output_text
            .lines()
            .filter(|line| line.starts_with("ok "))
            .count()
            > 20,
        "too few checks ran: {output_text}"
    );
}

#[test]
#[contract("CK29", "CH18", "B3")]
fn the_sdks_for_python_work() {
    test_programs::require!(PythonSdks);
    let bench = SdkBench::start();
    let mut checks = Command::new(test_programs::python());
    // No file is written beside the sources.
    checks
        .arg("-B")
        .arg(program("python/main.py"))
        .arg(targets(&bench).to_string());
    passes(checks);
}

#[test]
#[contract("CK29", "CH18", "B3")]
fn the_sdks_for_node_work() {
    test_programs::require!(NodeSdks);
    let bench = SdkBench::start();
    let folder = test_programs::node_folder().expect("`require` has found it");
    let mut checks = Command::new("node");
    checks
        .arg(program("node/main.mjs"))
        .arg(folder)
        .arg(targets(&bench).to_string());
    passes(checks);
}
