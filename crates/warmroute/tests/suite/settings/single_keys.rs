//! Keys whose effect is one observation each.

use std::{
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use contract_id::contract;
use serde_json::json;
use test_programs::ReservedPort;

use crate::harness::{
    Program, RawClient, RoutedFleet, RouterQueries as _, ScriptedEngine, ScriptedReply, Stopwatch,
    chat, eventually, json_reply, words,
};

fn fine() -> ScriptedReply {
    ScriptedReply::whole(json_reply("200 OK", "", "{\"choices\": []}"))
}

#[test]
fn an_idle_connection_is_closed_after_the_keep_alive_time() {
    let router = Program::serve_with("workers: []\nserver: {keep_alive: 1s}\n", &[], &[]);
    let mut client = RawClient::connect(&router.data());
    let idle = Stopwatch::start();
    client.send("GET", "/livez", &[], b"");
    assert_eq!(client.reply().status, 200);
    assert!(client.is_closed());
    // The default is 75 s; a connection that is closed at once would not be kept at all.
    assert!(
        idle.elapsed() >= Duration::from_secs(1),
        "{:?}",
        idle.elapsed()
    );
    assert!(
        idle.elapsed() < Duration::from_secs(30),
        "{:?}",
        idle.elapsed()
    );
}

#[test]
#[contract("S34")]
fn a_head_is_refused_above_the_configured_size() {
    let engine = ScriptedEngine::start(fine());
    let config = "server: {max_head_bytes: 8KiB}\n";
    let router = Program::serve_with(config, &[engine.url()], &[]).ready(1);
    let status = |bytes: usize| {
        let body = chat("m", "hi", 1).to_string();
        let long = [("x-long", &*"a".repeat(bytes))];
        RawClient::post_with(
            &router.data(),
            "/v1/chat/completions",
            &long,
            body.as_bytes(),
        )
        .status
    };
    assert_eq!((status(4 << 10), status(9 << 10)), (200, 431));
}

#[test]
fn a_worker_is_ejected_after_as_many_failed_requests_as_configured_and_for_as_long() {
    for (breaker, ejects) in [
        (
            "consecutive_failures: 2, ejection: 2s, max_ejected_ratio: 1",
            true,
        ),
        (
            "consecutive_failures: 2, ejection: 2s, max_ejected_ratio: 0",
            false,
        ),
        ("consecutive_failures: 200", false),
        ("enabled: false, consecutive_failures: 2", false),
    ] {
        let cut = ScriptedEngine::start(ScriptedReply::Cut(Vec::new()));
        let well = ScriptedEngine::start(fine());
        let config = format!(
            "circuit_breaker: {{{breaker}}}\nhealth_checks: {{interval: 100ms}}\nrouting: {{policy: round_robin}}\n"
        );
        let workers = [format!("cut={}", cut.url()), format!("well={}", well.url())];
        let router = Program::serve_with(&config, &workers, &[]).ready(2);
        let state = || {
            let workers = router.workers();
            let worker = workers.iter().find(|worker| worker["name"] == "cut");
            worker.expect("a worker")["state"]
                .as_str()
                .expect("a state")
                .to_owned()
        };
        let started = Stopwatch::start();
        let mut ejected = false;
        for _ in 0..12 {
            let reply = RawClient::chat(&router.data(), &chat("m", "hi", 1)).reply();
            assert_eq!(reply.status, 200, "{}", reply.text());
            ejected |= state() == "ejected";
        }
        assert_eq!(ejected, ejects, "{breaker}");
        if ejects {
            eventually("the end of the ejection", || {
                (state() == "ready").then_some(())
            });
            assert!(started.elapsed() >= Duration::from_secs(2));
        }
    }
}

#[test]
fn the_hash_function_and_its_seed_name_the_blocks() {
    let digest = |config: &str| {
        let routed = RoutedFleet::with(&[&[]], config, &[]);
        let prompt = words("one", 200);
        routed.completion(json!({"prompt": prompt}), &[]);
        let digest = routed.digest();
        assert!(digest.to_string().contains("\"blocks\":"), "{digest}");
        digest
    };
    let usual = digest("");
    assert_eq!(
        digest("kv_events: {block_hash: xxh3, block_hash_seed: 1337}\n"),
        usual
    );
    let seeded = digest("kv_events: {block_hash_seed: 7}\n");
    let fnv = digest("kv_events: {block_hash: fnv1a}\n");
    assert!(
        seeded != usual && fnv != usual && fnv != seeded,
        "{usual} {seeded} {fnv}"
    );
}

#[test]
fn the_port_key_replaces_the_port_of_the_listener() {
    let port = ReservedPort::new();
    let config = format!("workers: []\nserver: {{port: {}}}\n", port.number());
    // The harness asks for any port.
    let router = Program::serve_with(&config, &[], &[]);
    assert_eq!(router.data(), port.address());
    assert_eq!(RawClient::get(&port.address(), "/livez").status, 200);
}

#[test]
fn requests_are_served_by_as_many_threads_as_configured() {
    let threads = |count: u32| {
        let config = format!("workers: []\nserver: {{runtime_threads: {count}}}\n");
        let router = Program::serve_with(&config, &[], &[]);
        let folder = format!("/proc/{}/task", router.pid());
        std::fs::read_dir(folder).expect("its threads").count()
    };
    // A few threads more have other work.
    let (few, many) = (threads(1), threads(64));
    assert!(few < 64 && many >= 64, "{few} and {many}");
}

#[test]
fn the_block_size_of_all_workers_is_that_of_the_section_unless_a_worker_has_its_own() {
    let prompt: Vec<u32> = (1..=120).collect();
    for (models, worker, predicted) in [
        ("", "", 112),
        ("models: {defaults: {block_size: 32}}\n", "", 96),
        (
            "models: {defaults: {block_size: 32}}\n",
            ", block_size: 64",
            64,
        ),
    ] {
        let engine = Program::engine(&["--no-kv-events", "--speed", "20"]);
        let url = engine.url();
        let config = format!("{models}workers:\n  - {{name: a, url: \"{url}\"{worker}}}\n");
        let router = Program::serve_with(&config, &[], &[]).ready(1);
        let body = json!({"model": "sim", "prompt": prompt, "max_tokens": 1}).to_string();
        let send = || RawClient::post(&router.data(), "/v1/completions", body.as_bytes());
        assert_eq!(send().status, 200);
        let found = send();
        let found = found.header("x-warmroute-predicted-cached-tokens");
        assert_eq!(found, Some(predicted.to_string().as_str()), "{config}");
    }
}

/// A way to an engine that accepts connections only while it is open.
struct Gate {
    address: String,
    is_open: Arc<AtomicBool>,
    passing: Arc<Mutex<Vec<TcpStream>>>,
}

impl Gate {
    fn before(engine: &ScriptedEngine) -> Self {
        let any = "127.0.0.1:0".parse().expect("an address");
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(any).expect("a free port");
        // The shortest queue of connections that nobody has accepted.
        let listener = socket.listen(1).expect("a listener");
        let address = listener.local_addr().expect("an address").to_string();
        let listener = listener.into_std().expect("a listener");
        let is_open = Arc::new(AtomicBool::new(true));
        let passing = Arc::<Mutex<Vec<TcpStream>>>::default();
        let (open, all, engine) = (
            Arc::clone(&is_open),
            Arc::clone(&passing),
            engine.address().to_owned(),
        );
        // Ends with the test program.
        std::thread::spawn(move || {
            loop {
                let accepted = open.load(Ordering::SeqCst).then(|| listener.accept().ok());
                let Some(Some((client, _))) = accepted else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                client.set_nonblocking(false).expect("a socket");
                let Ok(worker) = TcpStream::connect(&engine) else {
                    continue;
                };
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), worker.try_clone().unwrap()),
                    (worker, client),
                ] {
                    all.lock().unwrap().push(from.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self {
            address,
            is_open,
            passing,
        }
    }

    /// Cuts all connections and fills the queue, so that the system answers no further attempt;
    /// returns the connections in the queue.
    fn close(&self) -> Vec<TcpStream> {
        self.is_open.store(false, Ordering::SeqCst);
        for stream in self.passing.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let address = self.address.parse().expect("an address");
        let next = || TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok();
        std::iter::from_fn(next).take(100).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_to_a_worker_may_take_as_long_as_configured() {
    let engine = ScriptedEngine::start(fine());
    let gate = Gate::before(&engine);
    let config = "request: {connect_timeout: 30s}\nretry: {max_attempts: 1}\nhealth_checks: {interval: 10m}\n";
    let url = format!("http://{}", gate.address);
    let router = Program::serve_with(config, &[url], &[]).ready(1);
    let queued = gate.close();
    let mut client = RawClient::chat(&router.data(), &chat("m", "hi", 1));
    // Longer than the default of one second.
    std::thread::sleep(Duration::from_secs(2));
    drop(queued);
    gate.is_open.store(true, Ordering::SeqCst);
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let receipt = router.receipt_of(&reply);
    assert_eq!(receipt["attempts"].as_array().map(Vec::len), Some(1));
}
