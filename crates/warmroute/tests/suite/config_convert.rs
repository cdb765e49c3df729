//! `warmroute config convert`: its output and its exit codes.

use std::{process::Command, time::Duration};

use contract_id::contract;

use crate::harness::{self, Program};

const SEED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/seed-configs/vllm-router-decode-policy-at-top.yaml"
);

fn convert(file: &str) -> harness::FinishedProgram {
    Program::finish(&["config", "convert", "--from", "vllm-router", file])
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), text).expect("it can be written");
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("its name is text")
}

#[test]
#[contract("V1")]
fn a_file_of_another_router_is_printed_in_our_format() {
    let end = convert(SEED);
    assert_eq!((end.code, end.stderr.as_str()), (Some(0), ""));
    for line in [
        "  - {url: \"http://prefill1:8081\", role: prefill}",
        "  - {url: \"http://decode2:8084\", role: decode}",
        "  decode_policy: kv_aware",
    ] {
        assert!(
            end.stdout.lines().any(|found| found == line),
            "no {line:?} in: {}",
            end.stdout
        );
    }
}

#[test]
fn a_converted_file_passes_the_check_where_all_of_it_is_built() {
    let theirs = file(
        "mode: {type: regular, worker_urls: ['http://127.0.0.1:1']}\npolicy: {type: kv_aware}\nhost: x\n",
    );
    let end = convert(path(&theirs));
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    assert!(
        end.stdout.contains("# no counterpart: host\n"),
        "{}",
        end.stdout
    );
    let ours = file(&end.stdout);
    let check = Program::finish(&["config", "check", path(&ours)]);
    assert_eq!(
        (check.code, check.stdout.as_str()),
        (Some(0), "ok\n"),
        "{}",
        check.stderr
    );
}

#[test]
fn an_invalid_file_ends_with_78_all_problems_and_nothing_on_stdout() {
    let theirs =
        file("mode: {type: regular, worker_urls: [nonsense]}\nengine_wait_timeout_secs: '600'\n");
    let end = convert(path(&theirs));
    assert_eq!((end.code, end.stdout.as_str()), (Some(78), ""));
    let lines: Vec<&str> = end.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", end.stderr);
    assert!(
        lines[0].starts_with(&format!(
            "{}: line 1, column 37: mode.worker_urls[0]: ",
            path(&theirs)
        )),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].contains("line 2, column 27: engine_wait_timeout_secs: ")
            && lines[1].contains("expected")
    );
}

#[test]
fn a_file_that_is_missing_or_not_utf8_ends_with_78() {
    let end = convert("/no/such/file.yaml");
    assert_eq!((end.code, end.stdout.as_str()), (Some(78), ""));
    assert!(
        end.stderr.starts_with("/no/such/file.yaml: "),
        "{}",
        end.stderr
    );
    let bytes = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(bytes.path(), b"mode: \xff").expect("it can be written");
    let end = convert(path(&bytes));
    assert_eq!(end.code, Some(78));
    assert!(end.stderr.contains("line 1, column 7"), "{}", end.stderr);
}

#[test]
fn a_dash_reads_stdin() {
    let text = std::fs::File::open(SEED).expect("the file is in the repository");
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmroute"));
    command
        .args(["config", "convert", "--from", "vllm-router", "-"])
        .stdin(text);
    let output = test_programs::limit::output(&mut command, Duration::from_secs(60));
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        convert(SEED).stdout
    );
}

#[test]
fn an_unknown_router_and_a_missing_file_are_bad_flags() {
    let end = Program::finish(&["config", "convert", "--from", "nobody", SEED]);
    assert_eq!((end.code, end.stdout.as_str()), (Some(2), ""));
    assert!(
        end.stderr.contains("vllm-router"),
        "what can be converted is named: {}",
        end.stderr
    );
    assert_eq!(
        Program::finish(&["config", "convert", "--from", "vllm-router"]).code,
        Some(2)
    );
    assert_eq!(Program::finish(&["config", "convert", SEED]).code, Some(2));
}
