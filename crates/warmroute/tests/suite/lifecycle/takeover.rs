//! Replacement of the router's own process.

use std::time::Duration;

use contract_id::contract;

use super::load::RequestLoad;
use crate::harness::{Program, RawClient, RouterQueries as _, chat, eventually, streamed};

/// The flags of every process in a row: fixed ports, so that the next one has the same.
struct FixedPorts {
    data: String,
    admin: String,
}

impl FixedPorts {
    fn serve(&self, worker: &str, more: &[&str]) -> Program {
        let flags = [
            "--listen",
            self.data.as_str(),
            "--admin-listen",
            self.admin.as_str(),
        ];
        Program::serve(&[format!("a={worker}")], &[&flags, more].concat())
    }
}

#[test]
#[contract("G12")]
#[contract("F74")]
fn a_hundred_restarts_under_load_refuse_no_connection_and_cut_no_stream() {
    let engine = Program::engine(&["--no-kv-events"]);
    let first = Program::serve(&[format!("a={}", engine.url())], &[]).ready(1);
    let places = FixedPorts {
        data: first.data(),
        admin: first.admin(),
    };
    let load = RequestLoad::start(&places.data, 8, Duration::from_millis(40));
    let mut running = first;
    let mut ended = Vec::new();
    for _ in 0..100 {
        let next = places.serve(&engine.url(), &["--takeover"]);
        assert_eq!(
            (next.data(), next.admin()),
            (places.data.clone(), places.admin.clone())
        );
        ended.push(std::mem::replace(&mut running, next));
        // A few processes at a time may be ending.
        if ended.len() > 5 {
            let finished = ended.remove(0).wait();
            assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        }
    }
    let requests = load.end_without_failure();
    eprintln!("100 restarts, {requests} requests");
    for program in ended {
        let finished = program.wait();
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    }
    assert_eq!(RawClient::get(&places.admin, "/admin/workers").status, 200);
}

#[test]
fn a_stream_that_runs_when_the_process_is_replaced_is_completed_by_the_old_one() {
    let engine = Program::engine(&["--no-kv-events", "--itl-ms", "10", "--overhead-ms", "1"]);
    let old = Program::serve(&[format!("a={}", engine.url())], &[]).ready(1);
    let places = FixedPorts {
        data: old.data(),
        admin: old.admin(),
    };
    let mut stream = RawClient::chat(&places.data, &streamed(chat("sim", "hi", 200)));
    let begun = stream.read_until("content");
    let new = places.serve(&engine.url(), &["--takeover"]);
    let served = RawClient::chat(&places.data, &chat("sim", "hi", 3)).reply();
    assert_eq!(served.status, 200);
    assert_eq!(new.workers().len(), 1);
    let reply = stream.body(begun);
    assert!(
        reply.clean && reply.text().ends_with("data: [DONE]\n\n"),
        "{}",
        reply.text()
    );
    assert_eq!(old.wait().code, Some(0));
    eventually("the new worker to be alone", || {
        (RawClient::get(&places.data, "/readyz").status == 200).then_some(())
    });
}

#[test]
fn a_takeover_without_a_process_is_a_start_and_a_taken_port_without_takeover_an_error() {
    let engine = Program::engine(&["--no-kv-events"]);
    let first = Program::serve(&[format!("a={}", engine.url())], &["--takeover"]).ready(1);
    let places = FixedPorts {
        data: first.data(),
        admin: first.admin(),
    };
    let second = Program::finish(&[
        "serve",
        "-w",
        &engine.url(),
        "--listen",
        &places.data,
        "--admin-listen",
        &places.admin,
    ]);
    assert_eq!(second.code, Some(1), "{}", second.stderr);
    assert!(
        second.stderr.contains("already in use"),
        "{}",
        second.stderr
    );
    assert_eq!(RawClient::get(&places.data, "/readyz").status, 200);
}

#[test]
fn a_process_that_takes_the_sockets_and_does_not_serve_changes_nothing() {
    let engine = Program::engine(&["--no-kv-events"]);
    let router = Program::serve(&[format!("a={}", engine.url())], &[]).ready(1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let send = |socket: &str| {
        let body = serde_json::json!({"socket": socket}).to_string();
        RawClient::post(&router.admin(), "/admin/takeover", body.as_bytes())
    };
    for bad in ["relative", "/nowhere/at/all"] {
        let refused = send(bad);
        assert!(matches!(refused.status, 400 | 409), "{}", refused.text());
    }
    assert_eq!(send(path.to_str().unwrap()).status, 200);
    assert_eq!(
        send(path.to_str().unwrap()).error_code(),
        "conflict",
        "one at a time"
    );
    drop(listener);
    assert_eq!(
        RawClient::chat(&router.data(), &chat("sim", "hi", 3))
            .reply()
            .status,
        200
    );
    assert_eq!(RawClient::get(&router.data(), "/readyz").status, 200);
}

#[test]
fn a_takeover_waits_for_another_one_that_is_under_way() {
    let engine = Program::engine(&["--no-kv-events"]);
    let old = Program::serve(&[format!("a={}", engine.url())], &[]).ready(1);
    let places = FixedPorts {
        data: old.data(),
        admin: old.admin(),
    };
    // This test gets the sockets first, and does not serve.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let body = serde_json::json!({"socket": path}).to_string();
    let given = RawClient::post(&places.admin, "/admin/takeover", body.as_bytes());
    assert_eq!(given.status, 200, "{}", given.text());
    std::thread::scope(|scope| {
        let next = scope.spawn(|| places.serve(&engine.url(), &["--takeover"]));
        // The next process is refused meanwhile, and asks again.
        std::thread::sleep(Duration::from_secs(2));
        assert!(!next.is_finished());
        drop(listener);
        let next = next.join().unwrap();
        assert_eq!(next.data(), places.data);
    });
    assert_eq!(old.wait().code, Some(0));
}
