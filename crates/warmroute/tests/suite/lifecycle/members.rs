//! Workers that operators add, replace and remove.

use std::time::Duration;

use contract_id::contract;
use serde_json::{Value, json};

use super::configured::ConfiguredFleet;
use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, SimControls as _,
    Stopwatch, chat, eventually, streamed,
};

fn one(urls: &[String]) -> String {
    format!("workers: [{{name: a, url: \"{}\"}}]\n", urls[0])
}

#[test]
fn a_worker_is_added_used_replaced_and_removed() {
    let it = ConfiguredFleet::start(3, one, &[]);
    it.until_ready(&["a"]);
    let urls = it.urls();
    let added = it.post(
        "/admin/workers",
        &json!({"name": "b", "url": urls[1], "weight": 2.0}),
    );
    assert_eq!(added.status, 201, "{}", added.text());
    assert_eq!(
        (&added.json()["name"], &added.json()["weight"]),
        (&json!("b"), &json!(2.0))
    );
    it.until_ready(&["a", "b"]);
    let again = it.post("/admin/workers", &json!({"name": "b", "url": urls[2]}));
    assert_eq!(
        (again.status, again.error_code().as_str()),
        (409, "worker_exists")
    );

    let replaced = it.call(
        "PUT",
        "/admin/workers/b",
        json!({"url": urls[2]}).to_string().as_bytes(),
    );
    assert_eq!(
        (replaced.status, &replaced.json()["url"]),
        (200, &json!(urls[2])),
        "{}",
        replaced.text()
    );
    it.until_ready(&["a", "b"]);
    let new = it.call(
        "PUT",
        "/admin/workers/c",
        json!({"url": urls[1]}).to_string().as_bytes(),
    );
    assert_eq!(new.status, 201, "{}", new.text());
    it.until_ready(&["a", "b", "c"]);

    // A configured worker can be removed too; it stays removed over a reload.
    for name in ["a", "c"] {
        let removed = it.call("DELETE", &format!("/admin/workers/{name}"), b"");
        let result = removed.json();
        assert_eq!(
            (removed.status, &result["name"], &result["safe_to_remove"]),
            (200, &json!(name), &json!(true)),
            "{result}"
        );
    }
    it.until_ready(&["b"]);
    assert_eq!(it.reload(false).0, 200);
    it.until_ready(&["b"]);
    let again = it.call("DELETE", "/admin/workers/c", b"");
    assert_eq!(
        (again.status, &again.json()["state"]),
        (200, &json!("removed")),
        "a repeated call has the same result"
    );
    let unknown = it.call("DELETE", "/admin/workers/nobody", b"");
    assert_eq!(
        (unknown.status, unknown.error_code().as_str()),
        (404, "worker_not_found")
    );
    let served = RawClient::chat(&it.router.data(), &chat("sim", "hi", 3)).reply();
    assert_eq!(
        (served.status, served.header("x-warmroute-worker")),
        (200, Some("b"))
    );
}

#[test]
fn a_worker_of_the_file_that_was_removed_replaced_and_removed_again_stays_away() {
    let yaml = |urls: &[String]| {
        format!(
            "workers: [{{name: a, url: \"{}\"}}, {{name: b, url: \"{}\"}}]\n",
            urls[0], urls[1]
        )
    };
    let it = ConfiguredFleet::start(2, yaml, &[]);
    it.until_ready(&["a", "b"]);
    assert_eq!(it.call("DELETE", "/admin/workers/a", b"").status, 200);
    it.until_ready(&["b"]);
    let body = json!({"url": it.urls()[0]}).to_string();
    let put = it.call("PUT", "/admin/workers/a", body.as_bytes());
    assert_eq!(put.status, 201, "{}", put.text());
    it.until_ready(&["a", "b"]);
    assert_eq!(it.call("DELETE", "/admin/workers/a", b"").status, 200);
    it.until_ready(&["b"]);
}

#[test]
#[contract("S38")]
#[contract("S39")]
fn an_invalid_worker_is_refused_with_its_problem_and_nothing_changes() {
    let it = ConfiguredFleet::start(1, one, &[]);
    for (body, status, code, says) in [
        (json!({"name": "b"}), 400, "invalid_request", "url"),
        (
            json!({"name": "b", "url": "http://user:pw@h:1"}),
            400,
            "invalid_request",
            "user name or password",
        ),
        (
            json!({"name": "b", "url": "http://0x7f.1:80"}),
            400,
            "invalid_request",
            "unusual spelling",
        ),
        (
            json!({"name": "b", "url": "file:///etc/passwd"}),
            400,
            "invalid_request",
            "not supported",
        ),
        (
            json!({"name": "b", "url": "http://h:1", "wieght": 2}),
            400,
            "invalid_request",
            "weight",
        ),
        (
            json!({"name": "b/c", "url": "http://h:1"}),
            400,
            "invalid_request",
            "name",
        ),
        (
            json!({"url": "http://h:1", "lease_ttl": "soon"}),
            400,
            "invalid_request",
            "lease_ttl",
        ),
        (
            json!({"url": "http://169.254.169.254/x"}),
            403,
            "destination_forbidden",
            "metadata",
        ),
        (
            json!({"url": "http://h:1", "api_key": "${HOME}"}),
            201,
            "",
            "",
        ),
    ] {
        let reply = it.post("/admin/workers", &body);
        assert_eq!(reply.status, status, "{body}: {}", reply.text());
        if status != 201 {
            assert_eq!(reply.error_code(), code, "{body}");
            assert!(reply.text().contains(says), "{body}: {}", reply.text());
        }
        assert!(!reply.text().contains("user:pw"));
    }
    let names: Vec<String> = it.states().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "h:1"]);
}

#[test]
#[contract("DY38")]
fn a_worker_with_a_lease_is_removed_unless_it_renews_it() {
    let it = ConfiguredFleet::start(2, one, &[]);
    let urls = it.urls();
    let lease = |ttl: &str| {
        let body = json!({"url": urls[1], "lease_ttl": ttl}).to_string();
        it.call("PUT", "/admin/workers/b", body.as_bytes()).status
    };
    // The lease is long enough for the worker to become ready.
    assert_eq!(lease("10m"), 201);
    it.until_ready(&["a", "b"]);
    let ttl = Duration::from_secs(2);
    let (start, mut renewed) = (Stopwatch::start(), Stopwatch::start());
    assert_eq!(lease("2s"), 200);
    while start.elapsed() < 2 * ttl {
        std::thread::sleep(ttl / 4);
        let again = Stopwatch::start();
        let (status, states) = (lease("2s"), it.states());
        let in_time = renewed.elapsed() < ttl;
        if in_time {
            assert_eq!(
                status,
                200,
                "renewed {:?} after the time before",
                renewed.elapsed()
            );
            assert!(
                states.contains(&("b".to_owned(), "ready".to_owned())),
                "{states:?}"
            );
        } else {
            // The machine stalled for longer than the lease, which may have ended.
            lease("10m");
            it.until_ready(&["a", "b"]);
        }
        renewed = again;
    }
    lease("2s");
    it.until_ready(&["a"]);
}

#[test]
fn changes_by_operators_survive_a_restart_with_a_state_file() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.json");
    let flags = ["--state-file", state.to_str().unwrap()];
    let it = ConfiguredFleet::start(2, one, &flags);
    it.until_ready(&["a"]);
    let added = it.post(
        "/admin/workers",
        &json!({"name": "b", "url": it.urls()[1], "api_key": "sk-secret-of-b"}),
    );
    assert_eq!(added.status, 201);
    let leased = it.call(
        "PUT",
        "/admin/workers/c",
        json!({"url": it.urls()[1], "lease_ttl": 60})
            .to_string()
            .as_bytes(),
    );
    assert_eq!(leased.status, 201, "{}", leased.text());
    it.call("DELETE", "/admin/workers/a", b"");
    it.until_ready(&["b", "c"]);
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(
        std::fs::metadata(&state).unwrap().permissions().mode() & 0o777,
        0o600,
        "the file contains keys"
    );

    let ConfiguredFleet {
        router,
        engines,
        folder: kept,
    } = it;
    drop(router);
    let path = kept.path().join("warmroute.yaml");
    let again = Program::serve(&[], &["-c", path.to_str().unwrap(), flags[0], flags[1]]);
    let again = ConfiguredFleet {
        router: again,
        engines,
        folder: kept,
    };
    again.until_ready(&["b"]);
    assert_eq!(again.in_force("/workers/0/api_key"), "***");
    // A removed worker can be added again.
    let back = again.call(
        "PUT",
        "/admin/workers/a",
        json!({"url": again.urls()[0]}).to_string().as_bytes(),
    );
    assert_eq!(back.status, 201, "{}", back.text());
    again.until_ready(&["a", "b"]);

    std::fs::write(&state, "{").unwrap();
    let refused = Program::finish(&[
        "serve",
        "-c",
        again.path().to_str().unwrap(),
        flags[0],
        flags[1],
        "--port",
        "0",
    ]);
    assert_eq!(refused.code, Some(78));
    assert!(
        refused.stderr.contains("discovery.state_file"),
        "{}",
        refused.stderr
    );
}

#[test]
#[contract("F98")]
fn a_drained_worker_finishes_its_requests_reports_its_warm_tokens_and_can_be_resumed() {
    let engines = (0..2).map(|_| Program::engine(&[])).collect();
    let two = |urls: &[String]| {
        format!(
            "workers: [{{name: a, url: \"{}\"}}, {{name: b, url: \"{}\"}}]\n",
            urls[0], urls[1]
        )
    };
    let it = ConfiguredFleet::before(engines, two, &[]);
    it.until_ready(&["a", "b"]);
    let pin = [
        ("x-warmroute-worker", "a"),
        ("content-type", "application/json"),
    ];
    let long = crate::harness::long_chat("sim", 200, 3).to_string();
    RawClient::post_with(
        &it.router.data(),
        "/v1/chat/completions",
        &pin,
        long.as_bytes(),
    );
    let mut client = RawClient::connect(&it.router.data());
    let body = streamed(chat("sim", "hi", 3000)).to_string();
    client.send("POST", "/v1/chat/completions", &pin, body.as_bytes());
    let begun = client.read_until("content");

    let drained = || it.call("POST", "/admin/workers/a/drain", b"").json();
    let result = drained();
    assert_eq!(result["state"], "draining");
    assert_eq!(
        (&result["in_flight"], &result["safe_to_remove"]),
        (&json!(1), &json!(false)),
        "{result}"
    );
    // A repeated call has no further effect; the blocks are known once their events have arrived.
    eventually("its blocks to be known", || {
        (drained()["warm_tokens_lost"].as_u64()? >= 100).then_some(())
    });
    assert_eq!(drained()["state"], "draining");
    for n in 0..4 {
        let reply = RawClient::chat(&it.router.data(), &chat("sim", &format!("{n}"), 2)).reply();
        assert_eq!(reply.header("x-warmroute-worker"), Some("b"));
    }
    let pinned = RawClient::post_with(
        &it.router.data(),
        "/v1/chat/completions",
        &pin,
        long.as_bytes(),
    );
    assert_eq!(pinned.status, 503, "{}", pinned.text());
    assert!(client.body(begun).clean, "the running stream continues");
    eventually("it to be safe to remove", || {
        (drained()["safe_to_remove"] == true).then_some(())
    });
    let resumed: Value = it.call("POST", "/admin/workers/a/resume", b"").json();
    assert_eq!(
        (&resumed["state"], &resumed["safe_to_remove"]),
        (&json!("ready"), &json!(false))
    );
    let reply = RawClient::post_with(
        &it.router.data(),
        "/v1/chat/completions",
        &pin,
        long.as_bytes(),
    );
    assert_eq!(reply.status, 200);
    assert_eq!(it.call("POST", "/admin/workers/x/drain", b"").status, 404);
    it.router.wait_until_idle();
    assert_eq!(it.engines[0].stats()["aborted"], 0);
}

#[test]
fn operators_override_the_file_and_discovery() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("engines.yaml");
    let yaml =
        |urls: &[String]| format!("{}discovery: {{file: \"{}\"}}\n", one(urls), list.display());
    let it = ConfiguredFleet::start(3, yaml, &[]);
    let urls = it.urls();
    std::fs::write(
        &list,
        format!(
            "- {{name: b, url: \"{}\"}}\n- {{name: c, url: \"{}\"}}\n",
            urls[1], urls[2]
        ),
    )
    .unwrap();
    it.until_ready(&["a", "b", "c"]);
    assert_eq!(it.call("DELETE", "/admin/workers/b", b"").status, 200);
    it.until_ready(&["a", "c"]);
    std::fs::write(&list, format!("- {{name: b, url: \"{}\"}}\n", urls[1])).unwrap();
    it.until_ready(&["a"]);

    // A worker that operators added keeps its entry when discovery finds another one of that name.
    let post = it.post("/admin/workers", &json!({"name": "e", "url": urls[2]}));
    assert_eq!(post.status, 201, "{}", post.text());
    std::fs::write(
        &list,
        format!(
            "- {{name: d, url: \"{}\"}}\n- {{name: e, url: \"{}\"}}\n",
            urls[1], urls[1]
        ),
    )
    .unwrap();
    it.until_ready(&["a", "d", "e"]);
    assert!(
        it.router
            .workers()
            .iter()
            .any(|it| it["name"] == "e" && it["url"] == json!(urls[2]))
    );

    // An operator's worker temporarily replaces the configured one.
    let put = it.call(
        "PUT",
        "/admin/workers/a",
        json!({"url": urls[2], "lease_ttl": "1s"})
            .to_string()
            .as_bytes(),
    );
    assert_eq!(
        (put.status, &put.json()["url"]),
        (200, &json!(urls[2])),
        "{}",
        put.text()
    );
    eventually("the configured worker to be back", || {
        let back =
            it.router.workers().iter().any(|it| {
                it["name"] == "a" && it["url"] == json!(urls[0]) && it["state"] == "ready"
            });
        back.then_some(())
    });
}

#[test]
#[contract("S11", "S37")]
fn an_entry_of_the_admin_api_reaches_no_file_or_socket_that_the_file_does_not_name() {
    let folder = tempfile::tempdir().expect("a directory");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "of-another-service").expect("a file");
    let secret = secret.display().to_string();
    let it = ConfiguredFleet::start(
        2,
        |urls: &[String]| {
            format!(
                "workers:\n  - {{name: a, url: \"{}\", health_check: {{method: POST, endpoint: /health, body: {{}}, \
                 accept_status: [200, 405]}}}}\n",
                urls[0]
            )
        },
        &[],
    );
    let url = it.urls()[1].clone();
    for entry in [
        json!({"name": "b", "url": "unix:///var/run/docker.sock"}),
        json!({"name": "b", "url": url, "kv_events": {"endpoint": "http://127.0.0.1:1/", "token_file": secret}}),
        json!({"name": "b", "url": url, "kv_events": {"endpoint": "ipc:///run/some.sock"}}),
        json!({"name": "b", "url": url, "kv_events": {"store": "ipc:///run/some.sock"}}),
        json!({"name": "b", "url": url, "kv_events": {"endpoint": "tcp://0.0.0.0:7777", "bind": true}}),
        json!({"name": "b", "url": "https://127.0.0.1:1", "tls": {"ca": secret}}),
        json!({"name": "b", "url": url, "health_check": {"method": "POST", "endpoint": "/containers/create"}}),
        json!({"name": "b", "url": url, "health_check": {"method": "POST", "endpoint": "/health", "body": {"a": 1}}}),
    ] {
        let refused = it.post("/admin/workers", &entry);
        assert_eq!(
            (refused.status, refused.error_code().as_str()),
            (403, "destination_forbidden"),
            "{entry}"
        );
        assert!(
            refused.text().contains("write this worker into the file"),
            "{}",
            refused.text()
        );
    }
    // What a worker of the file does, another one may do, too.
    let check =
        json!({"method": "POST", "endpoint": "/health", "body": {}, "accept_status": [200, 405]});
    let added = it.post(
        "/admin/workers",
        &json!({"name": "b", "url": url, "health_check": check}),
    );
    assert_eq!(added.status, 201, "{}", added.text());
    it.until_ready(&["a", "b"]);
}

#[test]
#[contract("S17")]
fn each_change_by_an_operator_is_in_the_log_without_its_secrets() {
    let it = ConfiguredFleet::start(1, one, &[]);
    let entry = json!({"name": "b", "url": it.urls()[0], "api_key": "sk-secret-of-b"});
    assert_eq!(it.post("/admin/workers", &entry).status, 201);
    assert_eq!(it.call("DELETE", "/admin/workers/b", b"").status, 200);
    assert_eq!(it.call("DELETE", "/admin/workers/nobody", b"").status, 404);
    it.call("GET", "/admin/workers", b"");
    let audit = eventually("the three changes in the log", || {
        let log = it.router.stderr();
        let lines = log.lines().filter(|line| line.contains("warmroute::audit"));
        let lines: Vec<_> = lines.map(str::to_owned).collect();
        (lines.len() >= 3).then_some(lines)
    });
    assert_eq!(audit.len(), 3, "{audit:#?}");
    for (line, (action, status)) in audit.iter().zip([
        ("POST /admin/workers", "201"),
        ("DELETE /admin/workers/b", "200"),
        ("DELETE /admin/workers/nobody", "404"),
    ]) {
        assert!(line.contains(action) && line.contains(status), "{line}");
        assert!(line.contains("this machine"), "{line}");
    }
    assert!(!it.router.stderr().contains("sk-secret-of-b"));
}

/// A port where nobody may connect.
struct ForbiddenPort(std::net::TcpListener);

impl ForbiddenPort {
    fn listen() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        Self(listener)
    }

    /// Its URL by a name that resolves to its address.
    fn url_by_name(&self) -> String {
        let address = self.0.local_addr().expect("an address");
        format!("http://localhost:{}", address.port())
    }

    fn assert_untouched(&self) {
        let error = self.0.accept().expect_err("a connection came");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
}

#[test]
#[contract("S39", "S37", "S40")]
fn a_worker_that_is_not_of_the_file_is_reached_only_in_the_allowed_networks() {
    let folder = tempfile::tempdir().expect("a directory");
    let list = folder.path().join("engines.yaml");
    let elsewhere = ForbiddenPort::listen();
    let by_name = elsewhere.url_by_name();
    std::fs::write(&list, format!("- {{name: found, url: \"{by_name}\"}}\n")).expect("a file");
    let yaml = |network: &str, urls: &[String]| {
        format!(
            "workers: [{{name: a, url: \"{}\"}}]\n\
             discovery: {{file: \"{}\", allowed_networks: [\"{network}\"]}}\n",
            urls[0],
            list.display()
        )
    };
    let it = ConfiguredFleet::start(1, |urls| yaml("10.0.0.0/8", urls), &[]);
    for url in [
        it.urls()[0].as_str(),
        "http://[::1]:8000",
        "http://11.0.0.1:8000",
    ] {
        let refused = it.post("/admin/workers", &json!({"name": "b", "url": url}));
        assert_eq!(
            (refused.status, refused.error_code().as_str()),
            (403, "destination_forbidden"),
            "{url}"
        );
        let why = refused.text();
        assert!(why.contains("outside discovery.allowed_networks"), "{why}");
    }
    let added = it.post("/admin/workers", &json!({"name": "b", "url": by_name}));
    assert_eq!(added.status, 201, "{}", added.text());
    for name in ["b", "found"] {
        eventually("the refusal to connect", || {
            let worker = it.get(&format!("/admin/workers/{name}"));
            (worker["last_error"] == "forbidden_address").then_some(())
        });
    }
    let report = it.get("/admin/doctor?probe=true");
    assert_eq!(report["ok"], false, "{report}");
    elsewhere.assert_untouched();
    // The worker of the file is where its author put it; a machine that stands still fails its probes.
    eventually("the worker of the file", || {
        let ready = ("a".to_owned(), "ready".to_owned());
        it.states().contains(&ready).then_some(())
    });

    let engine = Program::engine(&["--no-kv-events"]);
    let port = engine.url().rsplit(':').next().expect("a port").to_owned();
    std::fs::write(&list, "[]").expect("a file");
    let it = ConfiguredFleet::start(1, |urls| yaml("127.0.0.0/8", urls), &[]);
    let inside = json!({"name": "b", "url": format!("http://localhost:{port}")});
    assert_eq!(it.post("/admin/workers", &inside).status, 201);
    it.until_ready(&["a", "b"]);
}

/// What the doctor says of a worker that the file does not name.
const REDUCED_MESSAGES: [&str; 4] = [
    "correct",
    "not made",
    "works, but deserves attention",
    "failed",
];

#[test]
#[contract("S41")]
fn who_registers_a_stream_learns_of_it_one_word() {
    let secret = "text/of-another-service";
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {secret}\r\ncontent-length: 0\r\n\r\n");
    let [listed, registered] = [(); 2].map(|()| {
        let service = ScriptedEngine::start(ScriptedReply::whole(""));
        service.answer_bytes("/events", head.clone().into_bytes());
        service
    });
    let yaml = |urls: &[String]| {
        format!(
            "workers: [{{name: a, url: \"{}\", kv_events: {{endpoint: \"{}/events\"}}}}]\n",
            urls[0],
            listed.url()
        )
    };
    let it = ConfiguredFleet::start(2, yaml, &[]);
    let endpoint = format!("{}/events", registered.url());
    let events = json!({"endpoint": endpoint});
    let entry = json!({"name": "b", "url": it.urls()[1], "kv_events": events});
    let added = it.post("/admin/workers", &entry);
    assert_eq!(added.status, 201, "{}", added.text());
    let error_of = |worker: &str| {
        let report = it.get("/admin/streams");
        let rows = report["streams"].as_array()?;
        let row = rows.iter().find(|row| row["worker"] == worker)?;
        row["last_error"].as_str().map(str::to_owned)
    };
    // The operator wrote the address of the first one down, and is told more.
    let told = eventually("the stream of the file", || error_of("a"));
    assert!(told.contains(secret), "{told}");
    let told = eventually("the registered stream", || error_of("b"));
    assert_eq!(told, "no_connection");
}

#[test]
#[contract("S41")]
fn who_registers_a_publisher_learns_of_its_address_one_word() {
    let secret = "the-answer-of-another-service";
    let service = |status: &str, body: &str| {
        let service = ScriptedEngine::start(ScriptedReply::whole(""));
        service.answer("/kv_cache_events", status, body);
        service
    };
    let teapot = service("418 I am a teapot of another service", secret);
    let text = service("200 OK", secret);
    let list = json!([{"event_id": secret}]).to_string();
    let list = service("200 OK", &list);
    let it = ConfiguredFleet::start(1, one, &[]);
    for (name, kind, endpoint, word) in [
        (
            "no-one",
            "vLLM",
            "tcp://127.0.0.1:1".to_owned(),
            "no_connection",
        ),
        ("teapot", "TensorRT-LLM", teapot.url(), "no_connection"),
        ("text", "TensorRT-LLM", text.url(), "earlier_failure"),
        ("list", "TensorRT-LLM", list.url(), "earlier_failure"),
    ] {
        let body = json!({
            "endpoint": endpoint, "type": kind, "modelname": "m", "instance_id": name, "block_size": 16, "dp_rank": 0,
        });
        let registered = it.post("/register", &body);
        assert_eq!(registered.status, 200, "{}", registered.text());
        let told = eventually(name, || {
            let report = it.get("/services");
            let rows = report["services"].as_array()?;
            let row = rows.iter().find(|row| row["instance_id"] == name)?;
            row["last_error"].as_str().map(str::to_owned)
        });
        // A stream with too many unusable messages is disconnected for a while.
        assert!(
            told == word || word == "earlier_failure" && told == "unusable_messages",
            "{name}: {told}"
        );
    }
    let reply = it.call("GET", "/services", b"").text();
    assert!(
        !reply.contains("teapot of") && !reply.contains(secret),
        "{reply}"
    );
    // The operator finds the causes in the log.
    for cause in ["event stream failed", "answered with status 418"] {
        eventually(cause, || {
            let log = it.router.stderr();
            log.contains(cause).then_some(())
        });
    }
}

#[test]
#[contract("S41")]
fn who_registers_an_address_learns_of_a_probe_one_word() {
    let secret = "the-answer-of-another-service";
    let engine = ScriptedEngine::start(ScriptedReply::whole(""));
    let answered = |status: &str, body: &str| {
        for path in ["/health", "/v1/models", "/"] {
            engine.answer(path, status, body);
        }
    };
    let yaml = |urls: &[String]| {
        format!(
            "{}health_checks: {{interval: 1s, warmup_check_interval: 1s, recovery_interval: 1s, recovery_max_interval: 1s}}\n",
            one(urls)
        )
    };
    let it = ConfiguredFleet::start(1, yaml, &[]);
    answered("418 I am a teapot of another service", secret);
    let entry = json!({"name": "b", "url": engine.url()});
    let added = it.post("/admin/workers", &entry);
    assert_eq!(added.status, 201, "{}", added.text());
    let models = json!({"object": "list", "data": [{"id": secret}]}).to_string();
    for (status, body, word) in [
        (
            "418 I am a teapot of another service",
            secret,
            "unexpected_status",
        ),
        (
            "302 Found\r\nlocation: http://elsewhere.test/",
            "",
            "unexpected_status",
        ),
        ("200 OK", secret, "unusable_answer"),
    ] {
        answered(status, body);
        eventually(word, || {
            let worker = it.get("/admin/workers/b");
            (worker["last_error"] == word).then_some(())
        });
        let reply = it.call("GET", "/admin/workers", b"").text();
        for told in ["418", "302", "teapot", "elsewhere", secret] {
            assert!(!reply.contains(told), "{told}: {reply}");
        }
        let report = it.get("/admin/doctor");
        assert_eq!(report["ok"], false, "{report}");
        let workers = report["workers"].as_array().expect("a list");
        let checks = workers.iter().find(|worker| worker["name"] == "b");
        let checks = checks.and_then(|worker| worker["checks"].as_array());
        for check in checks.expect("a list") {
            let message = check["message"].as_str().expect("a text");
            assert!(REDUCED_MESSAGES.contains(&message), "{check}");
            assert_eq!(check["found"], Value::Null, "{check}");
        }
    }
    // The same address as a worker of the file: the operator wrote it down, and is told more.
    answered("418 I am a teapot of another service", &models);
    let of_file = ConfiguredFleet::start(
        1,
        |_| format!("workers: [{{name: b, url: \"{}\"}}]\n", engine.url()),
        &[],
    );
    eventually("the whole text", || {
        let worker = of_file.get("/admin/workers/b");
        worker["last_error"]
            .as_str()
            .is_some_and(|text| text.contains("with 418"))
            .then_some(())
    });
}
