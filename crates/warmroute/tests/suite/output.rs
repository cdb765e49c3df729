//! What a command prints reaches its reader, or the command fails.

use std::{
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
};

use crate::harness::Program;

const SIMULATE: &[&str] = &[
    "simulate",
    "--trace",
    "synthetic:chat?sessions=4&turns=2&minutes=1",
    "--profile",
    "toy",
    "--workers",
    "2",
];

fn simulate_with(flags: &[&'static str]) -> Vec<&'static str> {
    [SIMULATE, flags].concat()
}

/// Commands that print a result and succeed.
fn commands() -> Vec<Vec<&'static str>> {
    vec![
        simulate_with(&[]),
        simulate_with(&["--json"]),
        vec!["config", "init"],
        vec!["--version"],
        vec!["simulate", "--help"],
    ]
}

#[cfg(target_os = "linux")]
fn on_a_full_disk(args: &[&str]) -> crate::harness::FinishedProgram {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("Linux has it");
    Program::finish_into(args, full)
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_whose_result_cannot_be_written_fails_with_one_line() {
    for args in commands() {
        let finished = on_a_full_disk(&args);
        assert_eq!(finished.code, Some(1), "{args:?}: {}", finished.stderr);
        let start = "warmroute: the output cannot be written: ";
        assert!(finished.stderr.starts_with(start), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_is_written_although_stdout_is_full_and_a_bad_flag_keeps_its_code() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.json");
    let out = file.to_str().expect("a path of text");
    let finished = on_a_full_disk(&[SIMULATE, &["--out", out]].concat());
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    let report = std::fs::read_to_string(&file).expect("the report is there");
    assert!(report.contains("warmroute.simulation/1"), "{report}");
    let finished = on_a_full_disk(&["simulate"]);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert!(!finished.stderr.contains("cannot be written"));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    for args in commands() {
        let (reader, writer) = UnixStream::pair().expect("two sockets");
        drop(reader);
        let finished = Program::finish_into(&args, Stdio::from(OwnedFd::from(writer)));
        assert_eq!(
            (finished.code, finished.stderr.as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}
