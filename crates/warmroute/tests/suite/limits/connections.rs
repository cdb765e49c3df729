//! Connections that do nothing must not keep clients or operators out.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use contract_id::contract;

use crate::{
    faults::fleet::{ScriptedFleet, SimulatedRouter, fine},
    harness::{RawClient, RouterQueries as _, ScriptedReply, chat, streamed},
};

/// Silent connections of a test: no fewer than either listener accepts.
const SILENT: usize = 300;

fn silent(address: &str, count: usize) -> Vec<RawClient> {
    (0..count).map(|_| RawClient::connect(address)).collect()
}

/// A connection that sends these bytes and nothing more.
fn connect_and_send(address: &str, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Whether the router closes the connection, as opposed to sending nothing for a long time.
fn is_closed(mut stream: TcpStream) -> bool {
    let read = stream.read_to_end(&mut Vec::new());
    !matches!(read, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

#[test]
#[contract("S33")]
fn silent_connections_keep_no_client_out() {
    let scripted = ScriptedFleet::one(
        ScriptedReply::whole(fine()),
        "server: {max_connections: 256}\n",
    );
    let _silent = silent(&scripted.router.data(), SILENT);
    for _ in 0..20 {
        assert_eq!(scripted.post(&chat("m", "hi", 1)).status, 200);
    }
}

#[test]
#[contract("S33")]
fn silent_connections_keep_no_operator_out() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let admin = scripted.router.admin();
    let _silent = silent(&admin, SILENT);
    for _ in 0..20 {
        assert_eq!(RawClient::get(&admin, "/metrics").status, 200);
    }
}

#[test]
#[contract("S33")]
fn the_longest_idle_connection_is_closed_and_no_running_request() {
    let fleet = SimulatedRouter::start(
        1,
        &["--no-kv-events", "--itl-ms", "20"],
        "server: {max_connections: 16}\n",
    );
    let data = fleet.router.data();
    let mut stream = RawClient::chat(&data, &streamed(chat("sim", "hi", 20_000)));
    stream.read_until("data: ");
    let kept = connect_and_send(&data, b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n");
    let _silent = silent(&data, 32);
    assert!(is_closed(kept), "it was among the longest idle connections");
    for _ in 0..32 {
        assert_eq!(RawClient::get(&data, "/livez").status, 200);
        assert!(
            stream.chunk().is_some_and(|chunk| !chunk.is_empty()),
            "the stream goes on"
        );
    }
    drop(stream);
    fleet.router.wait_until_idle();
}

#[test]
#[contract("S33")]
fn a_connection_without_a_request_is_closed_after_the_head_timeout() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "server: {head_timeout: 1s}\n");
    let data = scripted.router.data();
    let mut used = RawClient::connect(&data);
    used.send("GET", "/livez", &[], b"");
    assert_eq!(used.reply().status, 200);
    assert!(is_closed(connect_and_send(&data, b"")), "it sent nothing");
    assert!(
        is_closed(connect_and_send(&data, b"GET /livez HT")),
        "its head was incomplete"
    );
    std::thread::sleep(Duration::from_secs(1));
    used.send("GET", "/livez", &[], b"");
    assert_eq!(
        used.reply().status,
        200,
        "a connection that carried a request may idle longer"
    );
}

#[test]
#[contract("S33")]
fn a_kept_connection_outlives_the_head_timeout_with_half_close() {
    let scripted = ScriptedFleet::one(
        ScriptedReply::whole(fine()),
        "server: {head_timeout: 1s, half_close: true}\n",
    );
    let outlives_it = |_| {
        let mut client = RawClient::connect(&scripted.router.data());
        (0..3).all(|_| {
            client.send("GET", "/livez", &[], b"");
            let Some(head) = client.head_or_end() else {
                return false;
            };
            assert_eq!(client.body(head).status, 200);
            std::thread::sleep(Duration::from_millis(700));
            true
        })
    };
    // Where the machine stands still, a single pause may be longer than the timeout.
    assert!((0..10).any(outlives_it), "it is closed each time");
}

/// A router with a low soft limit of open files, as a shell sets it.
struct RouterWithLowLimit {
    router: Child,
    ready: serde_json::Value,
}

impl RouterWithLowLimit {
    fn start(soft: u32) -> Self {
        let script = format!("ulimit -Sn {soft} && exec \"$@\"");
        let program = env!("CARGO_BIN_EXE_warmroute");
        let flags = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
            "--print-ready",
        ];
        let mut command = Command::new("sh");
        command
            .args(["-c", &script, "sh", program])
            .args(flags)
            .args(["-w", "http://127.0.0.1:9"]);
        let mut router = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(router.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Self {
            router,
            ready: serde_json::from_str(&line).unwrap(),
        }
    }

    /// The soft and the hard limit of the router's process.
    fn limits(&self) -> (u64, u64) {
        let text = std::fs::read_to_string(format!("/proc/{}/limits", self.router.id())).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("Max open files"))
            .unwrap();
        let number = |at| {
            line.split_whitespace()
                .nth(at)
                .unwrap()
                .parse()
                .unwrap_or(u64::MAX)
        };
        (number(3), number(4))
    }
}

impl Drop for RouterWithLowLimit {
    fn drop(&mut self) {
        let _ = self.router.kill();
        let _ = self.router.wait();
    }
}

#[test]
#[contract("F77")]
fn a_low_soft_limit_of_open_files_is_raised_at_the_start() {
    let limited = RouterWithLowLimit::start(256);
    let (soft, hard) = limited.limits();
    assert_eq!(soft, hard.min(65_536));
    assert_eq!(
        RawClient::get(limited.ready["data"].as_str().unwrap(), "/livez").status,
        200
    );
}
