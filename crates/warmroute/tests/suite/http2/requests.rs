//! Requests over HTTP/2: the same replies as over HTTP/1.1.

use std::process::{Command, Stdio};

use contract_id::contract;
use serde_json::Value;

use super::frames::{DATA, END_STREAM, FrameClient, RST_STREAM, borrowed, chat_head, frame};
use crate::{
    encryption::TestAuthority,
    faults::fleet::{CHAT, ScriptedFleet, SimulatedRouter},
    harness::{
        Program, RawClient, RouterQueries as _, ScriptedReply, SimControls as _, chat, eventually,
        stream_reply, streamed,
    },
};

/// A chat by curl; what it prints, and the version of HTTP that it spoke.
fn curl(address: &str, body: &Value, more: &[&str]) -> (String, String) {
    let scheme = if more.contains(&"--insecure") {
        "https"
    } else {
        "http"
    };
    let output = Command::new("curl")
        .args(["-sSN", "--max-time", "60", "-w", "\n%{http_version}"])
        .args(["-H", "content-type: application/json", "-d"])
        .arg(body.to_string())
        .args(more)
        .arg(format!("{scheme}://{address}{CHAT}"))
        .output()
        .expect("curl runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = String::from_utf8(output.stdout).unwrap();
    let (reply, version) = printed.rsplit_once('\n').expect(&error);
    assert!(output.status.success(), "{error}");
    (reply.to_owned(), version.to_owned())
}

const PRIOR: &[&str] = &["--http2-prior-knowledge"];

#[test]
fn a_stream_has_the_same_bytes_as_over_http_1() {
    let events = [
        "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n",
        ": a comment\n\n",
        "data: [DONE]\n\n",
    ];
    let scripted = ScriptedFleet::one(
        ScriptedReply::whole(stream_reply(&events.map(str::as_bytes))),
        "",
    );
    let data = scripted.router.data();
    let body = streamed(chat("m", "hi", 1));
    let direct = RawClient::post(&data, CHAT, body.to_string().as_bytes());
    assert!(direct.clean);
    assert_eq!(
        curl(&data, &body, PRIOR),
        (direct.text(), "2".to_owned()),
        "with prior knowledge"
    );
    assert_eq!(
        curl(&data, &body, &["--http1.1"]),
        (direct.text(), "1.1".to_owned())
    );
}

#[test]
fn http_2_is_negotiated_over_tls_and_can_be_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    authority.write_certificate(folder.path());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let engine = Program::engine(&["--no-kv-events"]);
    for (more, version) in [("", "2"), (", http2: false", "1.1")] {
        let tls = format!("{{cert: {}, key: {}}}", path("cert.pem"), path("key.pem"));
        let router = Program::serve_with(
            &format!("server: {{tls: {tls}{more}}}\n"),
            &[engine.url()],
            &[],
        );
        eventually("the worker is ready", || {
            let workers = router.workers();
            workers
                .iter()
                .all(|worker| worker["state"] == "ready")
                .then_some(())
        });
        let flags = ["--http2", "--insecure"];
        let (reply, spoken) = curl(&router.data(), &chat("sim", "hi", 3), &flags);
        assert_eq!(spoken, version, "{reply}");
        assert!(reply.contains("\"usage\""), "{reply}");
    }
}

#[test]
fn without_it_a_client_with_prior_knowledge_is_refused() {
    let router = Program::serve_with("server: {http2: false}\nworkers: []\n", &[], &[]);
    let status = Command::new("curl")
        .args(["-sS", "--max-time", "20", "--http2-prior-knowledge"])
        .arg(format!("http://{}/livez", router.data()))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!status.success());
}

#[test]
fn many_requests_share_a_connection() {
    let fleet = SimulatedRouter::start(1, &["--no-kv-events", "--itl-ms", "5"], "");
    let data = fleet.router.data();
    let mut client = FrameClient::connect(&data);
    let body = streamed(chat("sim", "hi", 20)).to_string();
    let head = chat_head(&data);
    let streams: Vec<_> = (0..50)
        .map(|_| {
            let stream = client.request(&borrowed(&head), 0);
            assert!(client.offer(&frame(DATA, END_STREAM, stream, body.as_bytes())));
            stream
        })
        .collect();
    let mut replies = vec![String::new(); streams.len()];
    let mut open = streams.len();
    while open > 0 {
        let frame = client.frame_of(&[DATA, RST_STREAM]).expect("it stays open");
        assert_eq!(frame.kind, DATA, "{frame:?}");
        let at = (frame.stream as usize - 1) / 2;
        replies[at].push_str(&String::from_utf8_lossy(&frame.payload));
        let is_last = !frame.payload.is_empty() && replies[at].ends_with("data: [DONE]\n\n");
        open -= usize::from(is_last);
    }
    fleet.router.wait_until_idle();
}

#[test]
#[contract("F34", "I6")]
fn a_reset_stream_ends_the_engines_work_and_leaves_the_connection_open() {
    let fleet = SimulatedRouter::start(1, &["--no-kv-events", "--itl-ms", "20"], "");
    let data = fleet.router.data();
    let mut client = FrameClient::connect(&data);
    let head = chat_head(&data);
    for tokens in [20_000, 20_000] {
        let stream = client.request(&borrowed(&head), 0);
        let body = streamed(chat("sim", "hi", tokens)).to_string();
        assert!(client.offer(&frame(DATA, END_STREAM, stream, body.as_bytes())));
        assert!(client.frame_of(&[DATA]).is_some(), "it has begun");
        assert!(client.offer(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())));
        eventually("the engine to be idle", || {
            (fleet.engines[0].stats()["running"] == 0).then_some(())
        });
        fleet.router.wait_until_idle();
    }
}

#[test]
fn a_stream_that_runs_at_sigterm_is_completed() {
    let fleet = SimulatedRouter::start(
        1,
        &["--no-kv-events", "--itl-ms", "20"],
        "server: {drain_grace: 0s}",
    );
    let data = fleet.router.data();
    let running = std::thread::spawn({
        let data = data.clone();
        move || curl(&data, &streamed(chat("sim", "hi", 60)), PRIOR)
    });
    eventually("it to run", || {
        (fleet.engines[0].stats()["running"] == 1).then_some(())
    });
    fleet.router.signal("TERM");
    let (reply, _) = running.join().unwrap();
    assert!(reply.ends_with("data: [DONE]\n\n"), "{reply}");
    let ended = fleet.router.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
