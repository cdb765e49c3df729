//! `warmroute events relay` publishes an engine's events on NATS and reports its state.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use event_sources::{NatsSource, NatsSpec, SourceHandle, SourceSpec, ZmqSource};
use kv_blocks::{DpRank, Target, WorkerId};
use kv_index::{IndexSettings, KvIndex};
use net::Clock;
use tokio::sync::mpsc;

use crate::{
    harness::{Program, RawClient, RouterQueries, chat, eventually, words},
    nats_server::NatsServer,
};

const TIMEOUT: Duration = Duration::from_secs(120);
const SUBJECT: &str = "kv.engine-0";

/// The command as a child process with the lines of its stderr; dropping it kills it.
struct RelayProcess {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    reading: Option<JoinHandle<()>>,
}

impl RelayProcess {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_warmroute"))
            .args(["events", "relay"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::unbounded_channel();
        let reading = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self {
            child,
            lines,
            reading: Some(reading),
        }
    }

    async fn wait_for_line(&mut self, text: &str) -> String {
        let wait = async {
            loop {
                let line = self.lines.recv().await.expect("it runs");
                if line.contains(text) {
                    return line;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, wait)
            .await
            .unwrap_or_else(|_| panic!("no line contained {text:?}"))
    }

    /// Sends a signal; returns the exit status and the last line.
    async fn end_by(mut self, signal: &str) -> (ExitStatus, String) {
        let sent = Command::new("kill")
            .args([&format!("-{signal}"), &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        let mut last = String::new();
        // The pipe ends with the program.
        while let Some(line) = tokio::time::timeout(TIMEOUT, self.lines.recv())
            .await
            .expect("it ends")
        {
            last = line;
        }
        (
            test_programs::limit::wait(&mut self.child, TIMEOUT, "warmroute events relay"),
            last,
        )
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reading) = self.reading.take() {
            let _ = reading.join();
        }
    }
}

fn target() -> Target {
    Target {
        worker: WorkerId(0),
        rank: DpRank(0),
    }
}

fn index() -> Arc<KvIndex> {
    Arc::new(KvIndex::new(IndexSettings::default()))
}

async fn until(source: &SourceHandle, what: &str, is_so: impl Fn() -> bool) {
    let mut changes = source.changes();
    let wait = async {
        while !is_so() {
            changes.changed().await.unwrap();
        }
    };
    if tokio::time::timeout(TIMEOUT, wait).await.is_err() {
        panic!("{what} did not happen: {:?}", source.report());
    }
}

/// Prompts an engine, so that it publishes events.
fn prompt(engine: &Program, seed: &str) {
    let body = chat("sim", &words(seed, 60), 4).to_string();
    assert_eq!(
        RawClient::post(&engine.data(), "/v1/chat/completions", body.as_bytes()).status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_behind_nats_has_the_same_index_as_one_beside_the_engine() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start(&[]);
    let engine = Program::engine(&["--block-size", "16"]);
    let endpoint = |name: &str| engine.ready[name][0].as_str().unwrap().to_owned();
    let (live, replay) = (endpoint("kv_events"), endpoint("replay"));
    prompt(&engine, "before");
    let mut relay = RelayProcess::start(&[
        "--endpoint",
        &live,
        "--replay",
        &replay,
        "--nats",
        &server.url(),
        "--subject",
        SUBJECT,
    ]);
    relay.wait_for_line("relaying to nats://127.0.0.1").await;

    let (beside, behind) = (index(), index());
    let mut spec = SourceSpec::new(target(), "w", "sim", live.parse().unwrap());
    spec.replay_endpoint = Some(replay.parse().unwrap());
    let near = ZmqSource::spawn(spec, Arc::clone(&beside), Clock::system());
    let spec = NatsSpec::new(
        target(),
        "w",
        "sim",
        format!("{}/{SUBJECT}", server.url()).parse().unwrap(),
    );
    let far = NatsSource::spawn(spec, Arc::clone(&behind), Clock::system());
    until(&near, "history", || near.report().last_seq.is_some()).await;
    until(&far, "the same history", || {
        behind.digest() == beside.digest()
    })
    .await;

    server.kill();
    relay.wait_for_line("lost").await;
    let before = near.report().last_seq;
    // A publisher needs time to learn of a subscriber, and earlier events are lost.
    for n in 0.. {
        prompt(&engine, &format!("while the server is away {n}"));
        let mut changes = near.changes();
        let news =
            async { while near.report().last_seq <= before && changes.changed().await.is_ok() {} };
        if tokio::time::timeout(Duration::from_secs(1), news)
            .await
            .is_ok()
        {
            break;
        }
        assert!(n < 20, "no news ever came: {:?}", near.report());
    }
    server.start_again();
    relay.wait_for_line("relaying to nats://127.0.0.1").await;
    until(&far, "the news", || {
        behind.digest() == beside.digest() && far.report().last_seq == near.report().last_seq
    })
    .await;

    let (status, last) = relay.end_by("INT").await;
    assert_eq!(status.code(), Some(130));
    assert!(
        last.contains("messages relayed; let go: 0 while nats was away or slow"),
        "{last}"
    );
    until(&far, "the farewell", || far.report().state == "connecting").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_follows_the_configured_subject() {
    test_programs::require!(NatsServer);
    let token = "let-me-in";
    let server = NatsServer::start(&["--auth", token]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, format!("{token}\n")).unwrap();
    let file = file.to_str().unwrap();
    let engine = Program::engine(&["--block-size", "16"]);
    let endpoint = |name: &str| engine.ready[name][0].as_str().unwrap().to_owned();
    let (live, replay) = (endpoint("kv_events"), endpoint("replay"));
    let to = [
        "--nats",
        &server.url(),
        "--subject",
        SUBJECT,
        "--credentials",
        file,
    ];
    let mut relay =
        RelayProcess::start(&[&["--endpoint", &live, "--replay", &replay][..], &to].concat());
    relay.wait_for_line("relaying to nats://127.0.0.1").await;
    prompt(&engine, "before the router");

    let worker = format!(
        "  - {{name: a, url: \"{}\", kv_events: {{endpoint: \"{}/{SUBJECT}\", token_file: \"{file}\"}}}}\n",
        engine.url(),
        server.url()
    );
    let near = Program::serve(&[format!("a={}", engine.url())], &[]).ready(1);
    let far = Program::serve_with(&format!("workers:\n{worker}"), &[], &[]).ready(1);
    let digest =
        |router: &Program| RawClient::get(&router.admin(), "/admin/kv-index/digest").json();
    let same = || {
        (digest(&near) == digest(&far) && digest(&near)["targets"][0]["blocks"] != 0).then_some(())
    };
    eventually("the same history", same);
    prompt(&engine, "after it");
    eventually("the same events", same);
    let streams = RawClient::get(&far.admin(), "/admin/streams").json();
    let stream = &streams["streams"][0];
    assert_eq!(
        (&stream["source"], &stream["state"]),
        (&"nats".into(), &"live".into()),
        "{stream}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_relay_waits_for_engine_and_server_and_ends_on_a_signal() {
    test_programs::require!(NatsServer);
    let mut server = NatsServer::start(&[]);
    server.kill();
    let mut relay = RelayProcess::start(&[
        "--endpoint",
        "tcp://127.0.0.1:1",
        "--nats",
        &server.url(),
        "--subject",
        SUBJECT,
    ]);
    relay
        .wait_for_line("check that a nats server listens there")
        .await;
    server.start_again();
    relay.wait_for_line("relaying to").await;
    assert_eq!(relay.end_by("TERM").await.0.code(), Some(143));
}

#[test]
fn wrong_flags_are_named() {
    let common = ["events", "relay", "--endpoint", "tcp://127.0.0.1:1"];
    for (args, message) in [
        (&["--subject", SUBJECT][..], "--nats"),
        (&["--nats", "nats://127.0.0.1:1"], "--subject"),
        (
            &["--nats", "http://127.0.0.1:1", "--subject", SUBJECT],
            "use nats or tls",
        ),
        (
            &["--nats", "nats://127.0.0.1:1/kv.a", "--subject", SUBJECT],
            "only scheme, host and port",
        ),
        (
            &["--nats", "nats://127.0.0.1:1", "--subject", "kv.*"],
            "wildcard",
        ),
        (
            &["--nats", "nats://127.0.0.1:1", "--subject", ""],
            "subject",
        ),
    ] {
        let end = Program::finish(&[&common[..], args].concat());
        assert_eq!(end.code, Some(2), "{end:?}");
        assert!(end.stderr.contains(message), "{end:?}");
    }
}

#[test]
fn a_relay_that_cannot_start_reports_it_and_exits_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let (missing, empty) = (
        folder.path().join("missing.creds"),
        folder.path().join("empty.creds"),
    );
    fs::write(&empty, "\n").unwrap();
    let to = ["--nats", "nats://127.0.0.1:1", "--subject", SUBJECT];
    for (args, message) in [
        (
            [
                "--endpoint",
                "tcp://127.0.0.1:1",
                "--credentials",
                missing.to_str().unwrap(),
            ],
            "missing.creds",
        ),
        (
            [
                "--endpoint",
                "tcp://127.0.0.1:1",
                "--credentials",
                empty.to_str().unwrap(),
            ],
            "expected a token",
        ),
        (
            ["--endpoint", "tcp://*:5557", "--topic", ""],
            "put the engine's host and port in it",
        ),
    ] {
        let end = Program::finish(&[&["events", "relay"], &to[..], &args[..]].concat());
        assert_eq!(end.code, Some(1), "{end:?}");
        assert!(end.stderr.contains(message), "{end:?}");
    }
}
