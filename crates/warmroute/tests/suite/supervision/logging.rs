//! The log never blocks the router.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use contract_id::contract;
use serde_json::{Value, json};

use crate::harness::{Program, RawClient, RouterQueries as _, chat, eventually};

const LOGGED: &str = "logging: {requests: true, format: json}\nserver: {drain_grace: 0s, probe_listen: \"127.0.0.1:0\"}\n";

/// A router whose log goes into a pipe without a reader.
struct UnreadLog {
    child: Child,
    ready: Value,
    _file: tempfile::NamedTempFile,
}

impl UnreadLog {
    fn serve(worker: &str) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), LOGGED).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_warmroute"))
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--admin-listen",
                "127.0.0.1:0",
                "--print-ready",
                "-w",
                worker,
            ])
            .arg("-c")
            .arg(file.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let _ = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
        Self {
            ready: serde_json::from_str(&line).unwrap(),
            child,
            _file: file,
        }
    }

    fn at(&self, listener: &str) -> &str {
        self.ready[listener].as_str().unwrap()
    }

    fn dropped(&self) -> f64 {
        let page = RawClient::get(self.at("admin"), "/metrics").text();
        let found = page
            .lines()
            .find_map(|line| line.strip_prefix("warmroute_telemetry_dropped_total{sink=\"log\"} "));
        found.map_or(0.0, |count| count.parse().unwrap())
    }
}

impl Drop for UnreadLog {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[contract("F67")]
fn an_unread_log_stops_nothing_and_its_lost_lines_are_counted() {
    let engine = Program::engine(&["--no-kv-events", "--speed", "1000"]);
    let mut router = UnreadLog::serve(&engine.url());
    eventually("the worker to be known", || {
        (RawClient::get(router.at("data"), "/readyz").status == 200).then_some(())
    });
    let body = chat("sim", "hi", 1).to_string();
    // Each request writes a line that consists mostly of its id.
    let id = "r".repeat(128);
    let mut client = RawClient::connect(router.at("data"));
    let lost = (0..40_000).any(|n| {
        client.send(
            "POST",
            "/v1/chat/completions",
            &[("x-request-id", id.as_str())],
            body.as_bytes(),
        );
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        n % 200 == 0 && router.dropped() > 0.0
    });
    assert!(lost, "the log's queue never filled");

    for path in ["/readyz", "/livez"] {
        assert_eq!(
            RawClient::get(router.at("probe"), path).status,
            200,
            "{path}"
        );
        assert_eq!(
            RawClient::get(router.at("data"), path).status,
            200,
            "{path}"
        );
    }
    assert_eq!(
        RawClient::get(router.at("admin"), "/admin/workers").status,
        200
    );
    assert_eq!(
        RawClient::chat(router.at("data"), &chat("sim", "hi", 1))
            .reply()
            .status,
        200
    );

    let sent = Command::new("kill")
        .args(["-TERM", &router.child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
    let code = eventually("the router to end despite its log", || {
        router.child.try_wait().unwrap()
    });
    assert_eq!(code.code(), Some(0));
}

#[test]
fn log_lines_are_complete_in_order_and_none_is_lost_at_exit() {
    let engine = Program::engine(&["--no-kv-events", "--speed", "1000"]);
    let router = Program::serve_with(LOGGED, &[engine.url()], &[]).ready(1);
    let mut client = RawClient::connect(&router.data());
    for n in 0..200 {
        let id = format!("line-{n}");
        let body = chat("sim", "hi", 1).to_string();
        client.send(
            "POST",
            "/v1/chat/completions",
            &[("x-request-id", id.as_str())],
            body.as_bytes(),
        );
        assert_eq!(client.reply().status, 200);
    }
    router.wait_until_idle();
    router.signal("TERM");
    let ended = router.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines: Vec<Value> = ended
        .stderr
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let position_of = |found: &dyn Fn(&Value) -> bool| lines.iter().position(found);
    let listening =
        position_of(&|line| line["fields"]["message"] == "listening").expect("the start is logged");
    let stopping = position_of(&|line| {
        line["fields"]["message"]
            .as_str()
            .is_some_and(|text| text.starts_with("told to stop"))
    });
    let requests: Vec<usize> = (0..200)
        .map(|n| {
            position_of(&|line| line["fields"]["request_id"] == json!(format!("line-{n}")))
                .expect("each is logged")
        })
        .collect();
    assert!(
        requests.is_sorted() && requests[0] > listening,
        "{requests:?}"
    );
    assert!(stopping.expect("the end is logged") > requests[199]);
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(
        ended.stderr.ends_with('\n') && last.contains("draining"),
        "{last}"
    );
}
