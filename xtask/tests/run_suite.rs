//! `cargo xtask run-suite` with programs that print like the test harness.

use std::{
    process::{Command, Output},
    time::Duration,
};

use test_programs::limit;

/// Runs a shell script as the test program.
fn suite(flags: &[&str], script: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .arg("run-suite")
        .args(flags)
        .args(["sh", "-c", script]);
    limit::output(&mut command, Duration::from_secs(60))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn output_and_exit_code_are_those_of_the_program() {
    let output = suite(&[], "echo one; echo two >&2; printf three; exit 7");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("one\nthree".to_owned(), "two\n".to_owned())
    );
    let killed = suite(&[], "kill -KILL $$");
    assert_eq!(killed.status.code(), Some(1));
    assert!(
        text(&killed.stderr).contains("ended with signal: 9"),
        "{}",
        text(&killed.stderr)
    );
}

#[test]
fn a_hanging_test_is_named_and_killed_with_its_descendants() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("child");
    let script = format!(
        "echo 'test quick ... ok'; sleep 600 & echo $! > {}; echo 'test a::hangs has been running for over 60 seconds'; wait",
        file.display()
    );
    let output = suite(&["--test-limit", "61"], &script);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("was killed: the test a::hangs ran for longer than 61 s"),
        "{said}"
    );
    let child = std::fs::read_to_string(&file).expect("the script wrote it");
    let state = std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
    assert!(
        state.is_empty() || state.contains(") Z "),
        "it is still running: {state}"
    );
}

#[test]
fn a_program_that_runs_for_too_long_is_killed_and_its_slow_tests_are_named() {
    let output = suite(
        &["--suite-limit", "1"],
        "echo 'test b has been running for over 60 seconds'; exec sleep 600",
    );
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("it ran for longer than 1 s; tests that had run for over a minute: b"),
        "{said}"
    );
}

#[test]
fn the_durations_of_a_test_program_and_of_its_tests_are_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder
        .path()
        .join("deps")
        .join("lifecycle-0123456789abcdef");
    std::fs::create_dir(folder.path().join("deps")).expect("a folder");
    // A copy would be a file that is open for writing in a child that another test forks meanwhile.
    std::os::unix::fs::symlink("/bin/echo", &program).expect("a program that prints its argument");
    let durations = folder.path().join("durations");
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .args(["run-suite", "--durations"])
        .arg(&durations)
        .arg(&program)
        .arg("running 1 test\ntest queue::a_test ... ok");
    let output = limit::output(&mut command, Duration::from_secs(60));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = std::fs::read_to_string(&durations).expect("the durations file exists");
    let names: Vec<_> = lines
        .lines()
        .map(|line| {
            let (seconds, name) = line.split_once('\t').expect("two columns");
            let seconds = seconds.parse::<f64>();
            assert!(seconds.is_ok_and(|seconds| seconds < 60.0), "{line}");
            name
        })
        .collect();
    assert_eq!(names, ["xtask lifecycle", "xtask lifecycle\tqueue::a_test"]);
}
