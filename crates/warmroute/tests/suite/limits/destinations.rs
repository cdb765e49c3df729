//! Where the router connects, whatever URL a call, an engine or a client gives it: to no address
//! that no engine can have, in any spelling. Every connect is recorded at the system call.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contract_id::contract;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::{
    faults::fleet::{CHAT, fine},
    harness::{
        ConnectHook, Program, RawClient, RawReply, RouterQueries as _, ScriptedEngine,
        ScriptedReply, chat, eventually,
    },
};

/// Services that give secrets to any process of the machine, and addresses of no single host.
const FORBIDDEN_V4: [[u8; 4]; 12] = [
    [169, 254, 169, 254],
    [169, 254, 170, 2],
    [169, 254, 0, 1],
    [169, 254, 255, 255],
    [100, 100, 100, 200],
    [168, 63, 129, 16],
    [192, 0, 0, 192],
    [0, 0, 0, 0],
    [0, 1, 2, 3],
    [224, 0, 0, 1],
    [239, 255, 255, 250],
    [255, 255, 255, 255],
];
const FORBIDDEN_V6: [&str; 10] = [
    "::",
    "fe80::1",
    "fe80::a9fe:a9fe",
    "febf::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
];
/// A permitted address outside this machine (a range for documentation): the positive control.
const PERMITTED: &str = "198.51.100.7";

/// Spellings of an IPv4 address as the host of a URL, by URL parsers, resolvers and translators.
fn spellings_v4(ip: [u8; 4]) -> Vec<String> {
    let [a, b, c, d] = ip;
    let number = u32::from_be_bytes(ip);
    let (v4, low) = (Ipv4Addr::from(ip), u32::from_be_bytes([0, b, c, d]));
    let last = u16::from_be_bytes([c, d]);
    let hex = format!("{number:08x}");
    let (high16, low16) = (&hex[..4], &hex[4..]);
    let wide: String = v4.to_string().chars().map(full_width).collect();
    vec![
        format!("{v4}"),
        format!("{v4}."),
        format!("{v4}%00"),
        format!("user@{v4}"),
        format!("user:pw@{v4}"),
        format!("127.0.0.1@{v4}"),
        format!("127.0.0.1%40{v4}"),
        format!("127.0.0.1\\@{v4}"),
        format!("127.0.0.1:80@{v4}"),
        format!("127.0.0.1#@{v4}"),
        format!("127.0.0.1?@{v4}"),
        format!("127.0.0.1 {v4}"),
        format!("{number}"),
        format!("{number}."),
        format!("0x{hex}"),
        format!("0X{}", hex.to_ascii_uppercase()),
        format!("0{number:o}"),
        format!("{a}.{low}"),
        format!("{a}.{b}.{last}"),
        format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("0{a:03o}.{b}.{c}.{d}"),
        format!("{a}.0x{b:x}.0{c:o}.{d}"),
        format!("{}.{b}.{c}.{d}", u32::from(a) + 256),
        format!("{a}%2e{b}%2e{c}%2e{d}"),
        format!(
            "%{:02x}{}",
            v4.to_string().as_bytes()[0],
            &v4.to_string()[1..]
        ),
        format!("{a}\u{3002}{b}\u{3002}{c}\u{3002}{d}"),
        wide,
        format!("[::ffff:{v4}]"),
        format!("[::ffff:{high16}:{low16}]"),
        format!("[0:0:0:0:0:FFFF:{v4}]"),
        format!("[::{v4}]"),
        format!("[64:ff9b::{v4}]"),
        format!("[64:ff9b:1::{v4}]"),
        format!(
            "[64:ff9b:1:{high16}:{:x}:{:x}::]",
            u16::from(c),
            u16::from(d) << 8
        ),
        format!("[2002:{high16}:{low16}::1]"),
        format!("[::ffff:{v4}%25lo]"),
        format!("{v4}.resolves.test"),
        format!("{v4}.RESOLVES.test."),
        format!("--ffff-{v4}.resolves.test"),
        format!("64-ff9b--{v4}.resolves.test"),
    ]
}

fn full_width(letter: char) -> char {
    match letter {
        '0'..='9' => char::from_u32(u32::from(letter) - u32::from('0') + 0xff10).unwrap_or(letter),
        other => other,
    }
}

fn spellings_v6(ip: &str) -> Vec<String> {
    let parsed: Ipv6Addr = ip.parse().expect("an address");
    let groups: Vec<String> = parsed
        .segments()
        .iter()
        .map(|part| format!("{part:04X}"))
        .collect();
    vec![
        format!("[{ip}]"),
        format!("[{}]", groups.join(":")),
        format!("[{ip}%25lo]"),
        format!("[{ip}%lo]"),
        format!("user@[{ip}]"),
        format!("{}.resolves.test", ip.replace(':', "-")),
    ]
}

/// Every host of the corpus.
fn hosts() -> Vec<String> {
    let v4 = FORBIDDEN_V4.into_iter().flat_map(spellings_v4);
    let v6 = FORBIDDEN_V6.into_iter().flat_map(spellings_v6);
    let rebinding = ["rebinds.test", "a.rebinds.test."].map(str::to_owned);
    v4.chain(v6).chain(rebinding).collect()
}

/// A router whose connects are recorded, before one engine.
struct WatchedRouter {
    hook: ConnectHook,
    engine: ScriptedEngine,
    router: Program,
}

impl WatchedRouter {
    fn start() -> Self {
        let hook = ConnectHook::build();
        let engine = ScriptedEngine::start(ScriptedReply::whole(fine()));
        let file = NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "health_checks: {timeout: 1s}\n").expect("it can be written");
        let path = file.path().to_str().expect("text").to_owned();
        let variables = hook.variables();
        let variables: Vec<_> = variables
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        let workers = [format!("own={}", engine.url())];
        let router = Program::serve_with_env(&workers, &["-c", &path], &variables);
        let router = router.with_file(file).ready(1);
        Self {
            hook,
            engine,
            router,
        }
    }

    fn post(&self, path: &str, body: &Value) -> RawReply {
        RawClient::post(&self.router.admin(), path, body.to_string().as_bytes())
    }

    /// Adds workers by an entry for each of every `step` hosts, and waits until each was tried. Returns
    /// how many were accepted.
    fn try_workers(&self, what: &str, step: usize, entry: impl Fn(&str, &str) -> Value) -> usize {
        let mut accepted = Vec::new();
        for (number, host) in hosts().iter().enumerate().step_by(step) {
            let name = format!("{what}-{number}");
            let reply = self.post("/admin/workers", &entry(&name, host));
            match reply.status {
                201 => accepted.push(name),
                400 | 403 => {}
                other => panic!("{other} for {host}: {}", reply.text()),
            }
        }
        eventually("every worker to be tried", || {
            let workers = self.router.workers();
            let tried = |name: &String| {
                let worker = workers.iter().find(|worker| worker["name"] == **name);
                worker.is_some_and(|worker| {
                    worker["state"] == "ready" || !worker["last_error"].is_null()
                })
            };
            accepted.iter().all(tried).then_some(())
        });
        accepted.len()
    }

    /// Checks that nothing but this machine was connected to.
    fn check(&self, what: &str) {
        for address in self.hook.addresses() {
            let local = address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
            assert!(local, "{what}: a connect to {address}");
        }
    }
}

#[test]
#[contract("G21", "S38", "S39", "S40")]
fn no_url_of_a_call_leads_to_an_address_that_no_engine_can_have() {
    let watched = WatchedRouter::start();
    assert!(hosts().len() >= 300, "{}", hosts().len());
    assert!(
        watched.hook.connects() > 0,
        "the engine's probes are recorded"
    );
    let own = watched.engine.url();
    let as_url = |name: &str, host: &str| json!({"name": name, "url": format!("http://{host}:80")});
    let accepted = watched.try_workers("url", 1, as_url);
    assert!(accepted > 0, "names are checked at the connect");
    watched.check("worker URLs");
    let events = |scheme: &'static str, keys: &'static [&'static str]| {
        let own = own.clone();
        move |name: &str, host: &str| {
            let mut events = json!({});
            for key in keys {
                events[key] = json!(format!("{scheme}://{host}:5557"));
            }
            json!({"name": name, "url": own, "kv_events": events})
        }
    };
    for (scheme, keys) in [
        ("tcp", &["endpoint", "replay_endpoint", "store"][..]),
        ("http", &["endpoint"]),
        ("ws", &["endpoint"]),
    ] {
        // One check serves all fields of an entry.
        watched.try_workers(scheme, 7, events(scheme, keys));
        watched.check(scheme);
    }
    // The control: what is permitted is connected to, and seen.
    let permitted = watched.post("/admin/workers", &as_url("permitted", PERMITTED));
    assert_eq!(permitted.status, 201, "{}", permitted.text());
    eventually("the permitted address to be tried", || {
        watched.hook.addresses().contains(PERMITTED).then_some(())
    });
}

#[test]
#[contract("G21", "S37", "S39")]
fn no_publisher_that_a_call_registers_is_at_an_address_that_no_engine_can_have() {
    let watched = WatchedRouter::start();
    for (number, host) in hosts().iter().enumerate() {
        for (key, scheme, kind) in [
            ("endpoint", "tcp", "vLLM"),
            ("replay_endpoint", "tcp", "vLLM"),
            ("endpoint", "http", "TensorRT-LLM"),
            ("endpoint", "tcp", "Mooncake"),
        ] {
            let mut body = json!({
                "endpoint": "tcp://127.0.0.1:1", "type": kind, "modelname": "m", "block_size": 16, "dp_rank": 0,
                "instance_id": format!("{kind}-{key}-{number}"),
            });
            body[key] = json!(format!("{scheme}://{host}:5557"));
            let reply = watched.post("/register", &body);
            assert!(
                matches!(reply.status, 200 | 400 | 403),
                "{body}: {}",
                reply.text()
            );
        }
    }
    eventually("every publisher to be tried", || {
        let services = RawClient::get(&watched.router.admin(), "/services").json();
        let rows = services["services"].as_array().expect("a list").clone();
        let tried = |row: &Value| row["source"] != "registered" || !row["last_error"].is_null();
        (!rows.is_empty() && rows.iter().all(tried)).then_some(())
    });
    watched.check("registrations");
}

#[test]
#[contract("G21", "S41", "S42")]
fn no_engine_and_no_client_sends_the_router_to_another_address() {
    let watched = WatchedRouter::start();
    let data = watched.router.data();
    for host in hosts() {
        let url = format!("http://{host}/latest/meta-data");
        // A line break would end the field.
        let location = url.replace(['\\', ' '], "");
        let redirect = format!(
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
        );
        watched.engine.once(ScriptedReply::whole(redirect));
        let mut body = chat("m", "hi", 1);
        for key in [
            "api_base",
            "base_url",
            "endpoint",
            "url",
            "target",
            "bootstrap_host",
            "callback_url",
        ] {
            body[key] = json!(url);
        }
        body["messages"] = json!([{"role": "user", "content": [
            {"type": "text", "text": "what is this?"},
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
            {"type": "video_url", "video_url": {"url": url}},
        ]}]);
        let headers = [
            ("x-original-url", &*location),
            ("x-forwarded-host", &*location),
            ("x-smg-target-worker", &*location),
            ("x-gateway-destination-endpoint", &*location),
            ("x-prefiller-host-port", &*location),
        ];
        for sent in [&body, &chat("m", "hi", 1)] {
            RawClient::post_with(&data, CHAT, &headers, sent.to_string().as_bytes());
        }
    }
    for target in ["/v1/models", "/health", "/kv_event_sources", "/version"] {
        let probes = watched.engine.probes();
        for ip in FORBIDDEN_V4 {
            let ip = Ipv4Addr::from(ip);
            let sources = json!({"0": {"endpoint": format!("tcp://{ip}:5557"), "replay_endpoint": format!("tcp://{ip}:5558")}});
            let redirect = format!(
                "HTTP/1.1 302 Found\r\nlocation: http://{ip}{target}\r\ncontent-length: 0\r\n\r\n"
            );
            match target {
                "/kv_event_sources" => {
                    watched
                        .engine
                        .answer(target, "200 OK", &sources.to_string())
                }
                _ => watched.engine.answer_bytes(target, redirect.into_bytes()),
            }
            let reply = RawClient::get(&watched.router.admin(), "/admin/doctor?probe=true");
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
        eventually("the engine to be asked", || {
            (watched.engine.probes() > probes).then_some(())
        });
    }
    watched.check("redirects, announcements and bodies");
    assert!(watched.hook.connects() > 0);
}
