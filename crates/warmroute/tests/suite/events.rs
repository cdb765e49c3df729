//! `warmroute events` shows and records the messages of a publisher.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread::JoinHandle,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use kv_events::frames;
use serde_json::{Value, json};
use zmtp::{Endpoint, Limits, Pub, PubSettings, Router};

use crate::harness::{FinishedProgram, Program, RawClient, chat, words};

const TIMEOUT: Duration = Duration::from_secs(120);

fn any() -> Endpoint {
    "tcp://127.0.0.1:0".parse().unwrap()
}

async fn publisher() -> (Pub, String) {
    let (publisher, endpoint) = Pub::bind(&any(), PubSettings::default()).await.unwrap();
    (publisher, endpoint.to_string())
}

/// Runs the program beside the test.
fn started(args: &[&str]) -> JoinHandle<FinishedProgram> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    std::thread::spawn(move || {
        Program::finish(&args.iter().map(String::as_str).collect::<Vec<_>>())
    })
}

async fn finished(running: JoinHandle<FinishedProgram>) -> FinishedProgram {
    let ended = tokio::task::spawn_blocking(|| running.join().unwrap());
    tokio::time::timeout(TIMEOUT, ended)
        .await
        .expect("it ends")
        .unwrap()
}

async fn subscribed(publisher: &Pub) {
    let mut subscribers = publisher.watch_subscribers();
    tokio::time::timeout(TIMEOUT, subscribers.wait_for(|count| *count > 0))
        .await
        .unwrap()
        .unwrap();
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures")
            .join(name),
    )
    .unwrap()
}

/// The lines of a recording of a real engine.
fn recorded() -> Vec<Value> {
    let text = String::from_utf8(fixture("vllm-real/0.32.0-session.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn decoded(message: &Value) -> Vec<Vec<u8>> {
    message
        .as_array()
        .unwrap()
        .iter()
        .map(|frame| BASE64_STANDARD.decode(frame.as_str().unwrap()).unwrap())
        .collect()
}

#[test]
fn a_simulated_engines_history_is_shown_batch_by_batch() {
    let engine = Program::engine(&["--block-size", "16"]);
    let endpoint = |name: &str| engine.ready[name][0].as_str().unwrap().to_owned();
    let prompt = words("tap", 60);
    let sent = RawClient::post(
        &engine.data(),
        "/v1/chat/completions",
        chat("sim", &prompt, 4).to_string().as_bytes(),
    );
    assert_eq!(sent.status, 200);
    let source = [
        "--endpoint",
        &endpoint("kv_events"),
        "--replay",
        &endpoint("replay"),
        "--count",
        "1",
    ];

    let end = Program::finish(&[&["events", "tap", "--json"], &source[..]].concat());
    assert_eq!(end.code, Some(0), "{end:?}");
    let line: Value = serde_json::from_str(&end.stdout).expect("one line of JSON");
    assert_eq!(
        (&line["schema"], &line["source"], &line["seq"]),
        (
            &json!("warmroute.event_batch/1"),
            &json!("replay"),
            &json!(0)
        )
    );
    let event = &line["events"][0];
    let blocks = event["blocks"].as_u64().unwrap();
    assert!(blocks > 0, "{line}");
    assert_eq!(
        (&event["kind"], &event["medium"]),
        (&json!("stored"), &json!("GPU"))
    );
    assert_eq!(event["tokens"].as_u64(), Some(blocks * 16));
    assert_eq!(
        (&line["dp_rank"], &line["error"]),
        (&json!(0), &Value::Null)
    );

    let end = Program::finish(&[&["events", "tap"], &source[..]].concat());
    let expected = format!(
        " replay seq 0 rank 0: stored 1 ({blocks} blocks, {} tokens) GPU\n",
        blocks * 16
    );
    assert!(end.stdout.ends_with(&expected), "{end:?}");
    assert!(end.stderr.contains("connected to tcp://"), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn undecodable_messages_are_shown_as_such_with_terminal_controls_escaped() {
    let (engine, endpoint) = publisher().await;
    let tap = started(&["events", "tap", "--endpoint", &endpoint, "--count", "5"]);
    subscribed(&engine).await;
    engine.send(&[b"one frame".to_vec()]);
    engine.send(&frames::encode_live(
        b"kv@\x1b[2J@m",
        3,
        &fixture("kv_events/bad_middle_event_good_neighbours.msgpack"),
    ));
    engine.send(&frames::encode_live(b"", 4, b"\xc1"));
    engine.send(&[
        b"old".to_vec(),
        fixture("kv_events/vllm_0_24_cleared_map.msgpack"),
    ]);
    engine.send(&frames::encode_live(
        b"",
        5,
        &fixture("kv_events/vllm_0_24_removed_map.msgpack"),
    ));
    let end = finished(tap).await;
    assert_eq!(end.code, Some(0));
    let lines: Vec<_> = end
        .stdout
        .lines()
        .map(|line| line.split_once("Z ").unwrap().1)
        .collect();
    assert_eq!(lines.len(), 5, "{end:?}");
    assert!(lines[0].contains("message has 1 frames"), "{lines:?}");
    assert!(
        lines[1].starts_with(r#"seq 3 topic "kv@\u{1b}[2J@m" rank 0: malformed 1, removed "#),
        "{lines:?}"
    );
    assert!(
        lines[1].ends_with(']') && !end.stdout.contains('\x1b'),
        "{lines:?}"
    );
    assert!(
        lines[2].starts_with("seq 4: [event batch of 1 bytes is unusable"),
        "{lines:?}"
    );
    assert!(
        lines[3].starts_with(r#"no seq topic "old""#) && lines[3].ends_with(": cleared 1"),
        "{lines:?}"
    );
    assert!(
        lines[4].contains(": removed 1 (") && lines[4].ends_with(" blocks) GPU"),
        "{lines:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_a_store_are_shown_in_their_own_format() {
    let (master, endpoint) = publisher().await;
    let tap = started(&[
        "events",
        "tap",
        "--endpoint",
        &endpoint,
        "--format",
        "mooncake",
        "--json",
        "--count",
        "2",
    ]);
    subscribed(&master).await;
    master.send(&frames::encode_live(
        b"",
        0,
        &fixture("kv_events/mooncake_master_stored_u64_key.msgpack"),
    ));
    master.send(&frames::encode_live(
        b"",
        1,
        &fixture("kv_events/mooncake_master_stored_opaque_key.msgpack"),
    ));
    let end = finished(tap).await;
    let lines: Vec<Value> = end
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let summary = |line: &Value| {
        (
            line["seq"].clone(),
            line["events"][0]["kind"].clone(),
            line["events"][0]["medium"].clone(),
        )
    };
    assert_eq!(
        summary(&lines[0]),
        (json!(0), json!("stored"), json!("cpu"))
    );
    assert_eq!(
        summary(&lines[1]),
        (json!(1), json!("stored"), json!("disk"))
    );
    assert_eq!(lines[1]["events"][0]["blocks"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_holds_every_frame_and_its_decoded_form() {
    let lines = recorded();
    let published: Vec<_> = lines
        .iter()
        .filter(|line| line["kind"] == "pub" && line["engine"] == "vllm0")
        .collect();
    let answer = lines
        .iter()
        .find(|line| line["kind"] == "replay" && line["messages"] == 39)
        .unwrap();
    let (mut router, replay) = Router::bind(&any(), Limits::default()).await.unwrap();
    let messages: Vec<_> = answer["received"]
        .as_array()
        .unwrap()
        .iter()
        .map(decoded)
        .collect();
    let (requested, request_seen) = tokio::sync::oneshot::channel();
    let replaying = tokio::spawn(async move {
        let (peer, request) = router.recv().await;
        for message in &messages {
            router.send(&peer, message).await;
        }
        let _ = requested.send(request);
        // A closed connection would count as a reply.
        std::future::pending::<()>().await;
    });
    let (engine, endpoint) = publisher().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("engine.jsonl");
    let count = (38 + published.len() - 1).to_string();
    let out = file.to_str().unwrap();
    let args = [
        "--endpoint",
        &endpoint,
        "--replay",
        &replay.to_string(),
        "--count",
        &count,
        "--out",
        out,
        "--engine",
        "vllm0",
    ];
    let dump = started(&[&["events", "dump"], &args[..]].concat());
    subscribed(&engine).await;
    let request = tokio::time::timeout(TIMEOUT, request_seen)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(frames::parse_replay_request(&request), Ok(0));
    // A batch that was published while the history was fetched arrives twice and is recorded once.
    let last = decoded(&json!(["", "AAAAAAAAACU=", "kMCQ"]));
    engine.send(&last);
    // The recorded engine's own numbers, moved behind those of its history.
    for (n, line) in published.iter().enumerate().skip(1) {
        let mut message = decoded(&line["frames"]);
        message[1] = (37 + n as u64).to_be_bytes().to_vec();
        engine.send(&message);
    }
    let end = finished(dump).await;
    assert_eq!((end.code, end.stdout.as_str()), (Some(0), ""), "{end:?}");
    replaying.abort();

    let written: Vec<Value> = fs::read_to_string(&file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        written.len(),
        published.len(),
        "the history, and all but one batch"
    );
    for field in [
        "kind",
        "engine",
        "socket",
        "sent",
        "received",
        "frames_per_message",
        "messages",
        "outcome",
    ] {
        assert_eq!(written[0][field], answer[field], "{field}");
    }
    for ((n, recorded_line), line) in written.iter().enumerate().skip(1).zip(&published[1..]) {
        assert_eq!(
            (
                &recorded_line["kind"],
                &recorded_line["engine"],
                &recorded_line["topic"]
            ),
            (&json!("pub"), &json!("vllm0"), &json!(""))
        );
        assert_eq!(recorded_line["seq"], 37 + n);
        assert_eq!(
            (&recorded_line["frames"][0], &recorded_line["frames"][2]),
            (&line["frames"][0], &line["frames"][2])
        );
        assert_eq!(
            recorded_line["batch"], line["batch"],
            "as the engine's own software decoded it"
        );
        assert!(recorded_line["t"].as_f64().is_some());
    }

    let again = Program::finish(&["events", "dump", "--endpoint", &endpoint, "--out", out]);
    assert_eq!(again.code, Some(1), "a recording is not written over");
    assert!(again.stderr.contains("name a new file"), "{again:?}");
    assert_eq!(
        fs::read_to_string(&file).unwrap().lines().count(),
        written.len()
    );
}

/// Starts the program with a pipe for its stdout.
fn piped(args: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_warmroute"))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    (child, stdout)
}

async fn code(mut child: Child) -> Option<i32> {
    let ended = move || test_programs::limit::wait(&mut child, TIMEOUT, "warmroute events").code();
    tokio::task::spawn_blocking(ended).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_ends_when_its_output_is_closed_and_on_a_signal() {
    let (engine, endpoint) = publisher().await;
    let batch = frames::encode_live(b"", 0, &fixture("kv_events/vllm_0_24_cleared_map.msgpack"));
    let (child, mut lines) = piped(&["events", "tap", "--endpoint", &endpoint]);
    subscribed(&engine).await;
    engine.send(&batch);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.contains("cleared 1"), "{line}");
    drop(lines);
    engine.send(&batch);
    assert_eq!(code(child).await, Some(0), "as behind a `head`");

    let (engine, endpoint) = publisher().await;
    let (child, _lines) = piped(&["events", "dump", "--endpoint", &endpoint]);
    subscribed(&engine).await;
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    assert_eq!(code(child).await, Some(130));
}

#[test]
fn wrong_flags_are_named() {
    for (args, message) in [
        (&["events", "tap"][..], "--endpoint"),
        (&["events", "tap", "--endpoint", "http://a:1"], "http://a:1"),
        (
            &["events", "dump", "--endpoint", "tcp://a:1", "--count", "0"],
            "--count",
        ),
    ] {
        let end = Program::finish(args);
        assert_eq!(end.code, Some(2), "{end:?}");
        assert!(end.stderr.contains(message), "{end:?}");
    }
}
