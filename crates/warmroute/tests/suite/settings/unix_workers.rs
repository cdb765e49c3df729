//! Workers behind Unix sockets beside TCP workers.

use contract_id::contract;

use crate::harness::{Program, RawClient, RouterQueries as _, chat, streamed, text_of};

#[test]
#[contract("V37")]
fn workers_behind_unix_sockets_and_ports_serve_side_by_side() {
    let folder = tempfile::tempdir().expect("a directory");
    let socket = folder.path().join("engine.sock").display().to_string();
    let flags = ["--no-kv-events", "--speed", "20"];
    let behind_socket = Program::engine(&[&flags[..], &["--uds", &socket]].concat());
    let behind_port = Program::engine(&flags);
    let workers = [
        format!("local=unix://{socket}"),
        format!("remote={}", behind_port.url()),
    ];
    let router = Program::serve_with("routing: {policy: round_robin}\n", &workers, &[]).ready(2);
    let mut served = Vec::new();
    for number in 0..6 {
        let body = chat("sim", &format!("question {number}"), 4);
        let body = if number < 3 { body } else { streamed(body) };
        let reply = RawClient::chat(&router.data(), &body).reply();
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(!text_of(&reply).is_empty(), "{}", reply.text());
        served.push(
            reply
                .header("x-warmroute-worker")
                .expect("a worker")
                .to_owned(),
        );
    }
    assert!(
        ["local", "remote"]
            .iter()
            .all(|name| served.iter().any(|worker| worker == name)),
        "{served:?}"
    );
    // The whole API works there, with a pinned worker too.
    let pinned = [("x-warmroute-worker", "local")];
    let body = chat("sim", "hi", 2).to_string();
    let reply = RawClient::post_with(
        &router.data(),
        "/v1/chat/completions",
        &pinned,
        body.as_bytes(),
    );
    assert_eq!(
        (reply.status, reply.header("x-warmroute-worker")),
        (200, Some("local")),
        "{}",
        reply.text()
    );
    // A worker whose socket is gone is excluded, and the other one keeps serving.
    drop(behind_socket);
    for _ in 0..4 {
        let reply = RawClient::chat(&router.data(), &chat("sim", "again", 2)).reply();
        assert_eq!(
            (reply.status, reply.header("x-warmroute-worker")),
            (200, Some("remote")),
            "{}",
            reply.text()
        );
    }
    router.wait_until_idle();
}

#[test]
#[contract("V37")]
fn a_worker_of_type_openai_behind_a_unix_socket_serves() {
    let folder = tempfile::tempdir().expect("a directory");
    let socket = folder.path().join("openai.sock").display().to_string();
    // Any server with the OpenAI API: without vLLM's other paths and its events.
    let _engine = Program::engine(&[
        "--no-kv-events",
        "--speed",
        "20",
        "--uds",
        &socket,
        "--without",
        "/version,/metrics,/tokenize,/kv_event_sources",
    ]);
    let config = format!("workers: [{{name: local, url: \"unix://{socket}\", type: openai}}]\n");
    let router = Program::serve_with(&config, &[], &[]).ready(1);
    assert_eq!(router.workers()[0]["type"], "openai");
    for body in [
        chat("sim", "whole", 4),
        streamed(chat("sim", "streamed", 4)),
    ] {
        let reply = RawClient::chat(&router.data(), &body).reply();
        assert_eq!(
            (reply.status, reply.header("x-warmroute-worker")),
            (200, Some("local")),
            "{}",
            reply.text()
        );
        assert!(!text_of(&reply).is_empty(), "{}", reply.text());
    }
    router.wait_until_idle();
}
