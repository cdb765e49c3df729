//! The log's level and format.

use contract_id::contract;

use crate::harness::{Program, RawClient, eventually};

const WORKER: &str = "workers: [\"http://127.0.0.1:1\"]\n";

/// A router with this section, once it has logged that it listens, if it does.
fn router(logging: &str) -> Program {
    started(logging, Program::start)
}

fn started(logging: &str, start: impl Fn(&[&str]) -> Program) -> Program {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), format!("{WORKER}logging: {{{logging}}}\n"))
        .expect("it can be written");
    let path = file.path().to_str().expect("its name is text");
    // Omits the flag of other tests: the file alone decides.
    start(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "-c",
        path,
    ])
    .with_file(file)
}

fn listening(router: &Program) -> String {
    eventually("the line that it listens", || {
        router
            .stderr()
            .lines()
            .find(|line| line.contains("listening"))
            .map(str::to_owned)
    })
}

#[test]
#[contract("CH29")]
fn off_a_terminal_a_line_is_one_json_object_unless_pretty_is_configured() {
    for logging in [
        "",
        "format: json",
        "format: auto",
        "format: json, enable_colors: true",
    ] {
        let line = listening(&router(logging));
        let read: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("{logging}: {line}"));
        assert_eq!(read["level"], "INFO", "{logging}: {line}");
        assert_eq!(read["fields"]["message"], "listening", "{logging}: {line}");
    }
    let line = listening(&router("format: pretty"));
    assert!(
        line.contains("INFO") && !line.starts_with('{') && !line.contains('\u{1b}'),
        "{line}"
    );
    let line = listening(&router("format: pretty, enable_colors: true"));
    assert!(line.contains("\u{1b}["), "{line}");
}

#[test]
#[contract("CH29")]
fn lines_below_the_level_are_left_out() {
    let quiet = router("level: warn");
    let chatty = router("level: debug");
    for router in [&quiet, &chatty] {
        RawClient::get(&router.data(), "/v1/models");
    }
    listening(&chatty);
    assert!(!quiet.stderr().contains("listening"), "{}", quiet.stderr());
    let flag = Program::finish(&["serve", "-w", "http://127.0.0.1:1", "--log-level", "loud"]);
    assert_eq!(flag.code, Some(2));
    assert!(
        flag.stderr.contains("trace, debug, info, warn, error"),
        "{}",
        flag.stderr
    );
}

#[test]
#[contract("CH29")]
fn on_a_terminal_a_line_is_text_unless_json_is_configured() {
    let on_terminal = |logging: &str| listening(&started(logging, Program::start_on_terminal));
    for logging in ["", "format: auto", "format: pretty"] {
        let line = on_terminal(logging);
        assert!(
            line.contains("INFO") && !line.contains('{') && !line.contains('\u{1b}'),
            "{logging}: {line}"
        );
    }
    let line = on_terminal("enable_colors: true");
    assert!(line.contains("\u{1b}["), "{line}");
    let line = on_terminal("format: json");
    let read: serde_json::Value =
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    assert_eq!(read["level"], "INFO", "{line}");
}
