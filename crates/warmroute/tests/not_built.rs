//! The program, built without a part that its configuration selects.
//!
//! `./test` runs it in a build of its own.

#![cfg(not(all(feature = "otel", feature = "redis-cache", feature = "s3-cache")))]

use std::{process::Command, time::Duration};

use contract_id::contract;
use test_programs::limit;

/// What `serve` says on standard error about this configuration; it must not start.
fn refusal(config: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), format!("workers: []\n{config}")).expect("it can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmroute"));
    command
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
            "-c",
        ])
        .arg(file.path());
    let output = limit::output(&mut command, Duration::from_secs(60));
    assert!(!output.status.success(), "{config}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[cfg(not(feature = "redis-cache"))]
#[test]
#[contract("CH22")]
fn the_program_names_the_missing_feature_for_each_store_in_redis() {
    let redis = "redis: {url: \"redis://127.0.0.1:1\"}";
    for (config, key) in [
        (
            format!("response_cache: {{enabled: true, backend: redis, {redis}}}\n"),
            "response_cache.backend",
        ),
        (
            format!(
                "response_cache: {{{redis}}}\nkv_cache_index: {{enabled: true, backend: redis}}\n"
            ),
            "kv_cache_index.backend",
        ),
    ] {
        let error = refusal(&config);
        assert!(
            error.contains(key) && error.contains("build it with the feature `redis-cache`"),
            "{error}"
        );
    }
}

#[cfg(not(feature = "s3-cache"))]
#[test]
#[contract("CH22")]
fn the_program_names_the_missing_feature_for_a_store_in_s3() {
    let l2 = "l2: {endpoint: \"http://127.0.0.1:1\", bucket: b}";
    let error = refusal(&format!(
        "response_cache: {{enabled: true, backend: tiered, {l2}}}\n"
    ));
    assert!(
        error.contains("response_cache.backend is tiered")
            && error.contains("build it with the feature `s3-cache`"),
        "{error}"
    );
}

#[cfg(not(feature = "otel"))]
#[test]
#[contract("V44")]
fn the_program_names_the_missing_feature_for_traces() {
    let error = refusal("tracing: {otlp_endpoint: \"http://127.0.0.1:1\"}\n");
    assert!(
        error.contains("tracing.otlp_endpoint")
            && error.contains("build it with the feature `otel`"),
        "{error}"
    );
}
