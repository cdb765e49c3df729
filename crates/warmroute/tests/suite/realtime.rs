//! `GET /v1/realtime`: WebSocket conversations through the router, with a simulated engine.

use contract_id::contract;
use serde_json::{Value, json};
use test_programs::ReservedPort;

use crate::harness::{Program, RawClient, RawReply, RouterQueries as _};

const PATH: &str = "/v1/realtime";
const HANDSHAKE: [(&str, &str); 5] = [
    ("connection", "keep-alive, Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("sec-websocket-version", "13"),
    ("sec-websocket-protocol", "realtime"),
];

/// One conversation.
struct Conversation {
    client: RawClient,
    /// The reply to the handshake.
    head: RawReply,
}

/// Sends a handshake and returns the connection and the head of its reply.
fn handshake(address: &str, query: &str, headers: &[(&str, &str)]) -> (RawClient, RawReply) {
    let mut client = RawClient::connect(address);
    let mut head = format!("GET {PATH}{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n");
    for (name, value) in HANDSHAKE.iter().chain(headers) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    client.send_bytes(format!("{head}\r\n").as_bytes());
    let head = client.head();
    (client, head)
}

impl Conversation {
    fn open(address: &str, headers: &[(&str, &str)]) -> Self {
        let (client, head) = handshake(address, "?model=sim", headers);
        assert_eq!(head.status, 101);
        Self { client, head }
    }

    /// Sends an event in a frame, masked as clients must.
    fn send(&mut self, event: &Value) {
        let text = event.to_string();
        let length = u16::try_from(text.len()).expect("a short event");
        let mask = [1, 2, 3, 4];
        let mut frame = vec![0x81, 0x80 | 126];
        frame.extend(length.to_be_bytes());
        frame.extend(mask);
        frame.extend(
            text.bytes()
                .zip(mask.iter().cycle())
                .map(|(byte, mask)| byte ^ mask),
        );
        self.client.send_bytes(&frame);
    }

    /// Sends an empty close frame.
    fn send_close(&mut self) {
        self.client.send_bytes(&[0x88, 0x80, 0, 0, 0, 0]);
    }

    /// The next frame, with its head and its payload; `None`: the connection ended.
    fn frame(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut head = self.client.bytes(2)?;
        let length = match head[1] {
            126 => {
                let length = self.client.bytes(2)?;
                head.extend(&length);
                usize::from(u16::from_be_bytes([length[0], length[1]]))
            }
            length => usize::from(length),
        };
        let payload = self.client.bytes(length)?;
        Some((head, payload))
    }

    /// The frames up to the one with an event of this kind, as they came.
    fn until(&mut self, kind: &str) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let (head, payload) = self.frame().expect("the conversation goes on");
            let event: Value = serde_json::from_slice(&payload).expect("an event");
            all.extend([head, payload].concat());
            if event["type"] == kind {
                return all;
            }
        }
    }

    /// Asks a question and begins its answer.
    fn ask(&mut self, text: &str) {
        let content = json!([{"type": "input_text", "text": text}]);
        let item = json!({"type": "message", "role": "user", "content": content});
        self.send(&json!({"type": "conversation.item.create", "item": item}));
        self.send(&json!({"type": "response.create", "response": {"max_output_tokens": 9}}));
    }
}

/// A conversation from its handshake to its end; what the client got.
fn held(address: &str, headers: &[(&str, &str)]) -> (RawReply, Vec<u8>) {
    let mut conversation = Conversation::open(address, headers);
    let mut all = conversation.until("session.created");
    for question in ["why?", "and then?"] {
        conversation.ask(question);
        all.extend(conversation.until("response.done"));
    }
    conversation.send_close();
    let (head, reason) = conversation.frame().expect("a close frame");
    all.extend([head, reason].concat());
    assert!(conversation.client.is_closed());
    (conversation.head, all)
}

fn in_flight(router: &Program) -> u64 {
    let workers = router.workers();
    let load = |worker: &Value| worker["load"]["in_flight"].as_u64().unwrap_or(0);
    workers.iter().map(load).sum()
}

fn outcome(router: &Program, reply: &RawReply) -> String {
    let receipt = router.receipt_of(reply);
    assert_eq!(receipt["route"], PATH);
    receipt["outcome"]["kind"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
#[contract("V36")]
fn a_conversation_through_the_router_is_the_engines_byte_for_byte() {
    let engine = Program::engine(&["--api-key", "sk-engine"]);
    let yaml = format!(
        "workers: [{{name: a, url: \"{}\", api_key: sk-engine}}]\n",
        engine.url()
    );
    let router = Program::serve_with(&yaml, &[], &[]).ready(1);
    // The engine's ids follow from the request's.
    let id = ("x-request-id", "same-1");
    let direct = || held(&engine.data(), &[id, ("authorization", "Bearer sk-engine")]);
    // The first one fills the cache, so that the later ones find its blocks.
    direct();
    let (direct_head, direct_bytes) = direct();
    let (head, bytes) = held(&router.data(), &[id]);
    assert_eq!(
        String::from_utf8_lossy(&bytes),
        String::from_utf8_lossy(&direct_bytes)
    );
    for name in ["sec-websocket-accept", "sec-websocket-protocol", "upgrade"] {
        assert!(head.header(name).is_some(), "{name}");
        assert_eq!(head.header(name), direct_head.header(name), "{name}");
    }
    assert_eq!(head.header("x-warmroute-worker"), Some("a"));
    assert_eq!(outcome(&router, &head), "ok");
    router.wait_until_idle();
    let requests = router.metric(
        "warmroute_requests_total",
        "route=\"/v1/realtime\",outcome=\"ok\"",
    );
    assert_eq!(requests, 1.0);
}

#[test]
fn a_conversation_is_load_until_its_client_leaves() {
    let engine = Program::engine(&[]);
    let router = Program::serve(&[engine.url()], &[]).ready(1);
    let mut conversation = Conversation::open(&router.data(), &[]);
    conversation.until("session.created");
    assert_eq!(in_flight(&router), 1);
    let head = conversation.head;
    drop(conversation.client);
    router.wait_until_idle();
    assert_eq!(
        (in_flight(&router), &*outcome(&router, &head)),
        (0, "client_gone")
    );
}

#[test]
fn a_worker_that_dies_ends_the_conversation_without_a_close_frame() {
    let mut engine = Program::engine(&[]);
    let router = Program::serve(&[engine.url()], &[]).ready(1);
    let mut conversation = Conversation::open(&router.data(), &[]);
    conversation.until("session.created");
    engine.kill();
    assert!(
        conversation.client.is_closed(),
        "no frame of the router's own"
    );
    let head = conversation.head;
    drop(conversation.client);
    assert_eq!(outcome(&router, &head), "upstream_error");
    router.wait_until_idle();
}

#[test]
fn a_dead_worker_costs_another_one_the_conversation_and_the_last_one_is_a_clear_error() {
    let dead = ReservedPort::new();
    let mut engine = Program::engine(&[]);
    let workers = [format!("http://{}", dead.address()), engine.url()];
    let yaml = format!(
        "workers:\n  - {{name: dead, url: \"{}\", models: [sim]}}\n  - {{name: b, url: \"{}\"}}\n",
        workers[0], workers[1]
    );
    let router = Program::serve_with(&yaml, &[], &[]).ready(1);
    for _ in 0..4 {
        let conversation = Conversation::open(&router.data(), &[]);
        assert_eq!(conversation.head.header("x-warmroute-worker"), Some("b"));
    }
    router.wait_until_idle();
    engine.kill();
    let (mut client, head) = handshake(&router.data(), "?model=sim", &[]);
    let refused = client.body(head);
    assert_eq!((refused.status, &*refused.error_code()), (503, "no_worker"));
    router.wait_until_idle();
}

#[test]
fn what_is_no_handshake_or_names_no_model_is_refused_with_one_clear_error() {
    let engine = Program::engine(&[]);
    let router = Program::serve(&[engine.url()], &[]).ready(1);
    let plain = RawClient::get(&router.data(), "/v1/realtime?model=sim");
    assert_eq!(
        (plain.status, &*plain.error_code()),
        (426, "upgrade_required")
    );
    assert_eq!(plain.header("upgrade"), Some("websocket"));
    let posted = RawClient::post(&router.data(), PATH, b"{}");
    assert_eq!(
        (posted.status, &*posted.error_code()),
        (405, "method_not_allowed")
    );
    for (query, status, code) in [
        ("?model=nothing", 404, "model_not_found"),
        ("?model=", 400, "invalid_request"),
        ("?model=sim&model=sim", 400, "duplicate_key"),
    ] {
        let (mut client, head) = handshake(&router.data(), query, &[]);
        let refused = client.body(head);
        assert_eq!(
            (refused.status, &*refused.error_code()),
            (status, code),
            "{query}"
        );
    }
    // The only model needs no name.
    let (_client, head) = handshake(&router.data(), "", &[]);
    assert_eq!(head.status, 101);
}

#[test]
fn a_workers_refusal_is_the_clients_reply_and_an_alias_reaches_it_by_its_name() {
    let engine = Program::engine(&[]);
    let aliases = "models: {aliases: {nick: sim}}\n";
    let router = Program::serve_with(aliases, &[engine.url()], &[]).ready(1);
    let (_client, head) = handshake(&router.data(), "?x=1&model=nick", &[]);
    assert_eq!(head.status, 101);
    assert_eq!(head.header("x-warmroute-rewrites"), Some("model"));
    let mut client = RawClient::connect(&router.data());
    let without_key = "connection: Upgrade\r\nupgrade: websocket\r\n";
    let request = format!("GET {PATH} HTTP/1.1\r\nhost: a\r\n{without_key}\r\n");
    client.send_bytes(request.as_bytes());
    let refused = client.reply();
    assert_eq!(refused.status, 400);
    let message = refused.json()["error"]["message"].clone();
    assert_eq!(message, "/v1/realtime expects a WebSocket handshake.");
    assert_eq!(outcome(&router, &refused), "client_error");
}

#[test]
fn a_conversation_that_outlasts_the_drain_is_cut() {
    let engine = Program::engine(&[]);
    let yaml = "server: {drain_grace: 0s, drain_timeout: 400ms}\n";
    let router = Program::serve_with(yaml, &[engine.url()], &[]).ready(1);
    let mut conversation = Conversation::open(&router.data(), &[]);
    conversation.until("session.created");
    router.signal("TERM");
    while conversation.frame().is_some() {}
    let ended = router.wait();
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
}
