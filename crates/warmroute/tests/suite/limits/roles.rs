//! What the tokens of operators allow.

use contract_id::contract;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::access::{bearer, call};
use crate::harness::{Page, Program, RawClient, RawReply, eventually};

/// Every role with its token, from the one that allows least.
const ROLES: [(&str, &str); 3] = [
    ("read", "the-token-of-a-reader"),
    ("operate", "the-token-of-an-operator"),
    ("admin", "the-token-of-an-admin"),
];
/// The token of `admin.token_file`.
const OF_FILE: &str = "the-token-of-the-file";

/// A router whose operators have names and roles.
struct SharedOperation {
    router: Program,
    _folder: TempDir,
}

impl SharedOperation {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        let token_file = file("token", OF_FILE);
        let tokens: Vec<Value> = ROLES
            .iter()
            .map(|(role, token)| match *role {
                "operate" => {
                    json!({"name": "of-file", "role": role, "token_file": file(role, token)})
                }
                _ => json!({"name": format!("a-{role}"), "role": role, "token": token}),
            })
            .collect();
        let admin = json!({"token_file": token_file, "tokens": tokens});
        let router = Program::serve_with(&format!("workers: []\nadmin: {admin}\n"), &[], &[]);
        Self {
            router,
            _folder: folder,
        }
    }

    fn call(&self, token: &str, method: &str, path: &str) -> RawReply {
        let mut client = RawClient::connect(&self.router.admin());
        client.send(method, path, &[("authorization", &bearer(token))], b"");
        // Streams have no end.
        client.head()
    }

    /// Method, path and role of each call, as the router describes it.
    fn operations(&self) -> Vec<(String, String, String)> {
        let token = bearer(OF_FILE);
        let document = call(
            &self.router.admin(),
            "GET",
            "/openapi.json",
            &[("authorization", &token)],
        )
        .json();
        let mut all = Vec::new();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for (method, operation) in methods.as_object().expect("methods") {
                if let Some(role) = operation.get("x-role").and_then(Value::as_str) {
                    let path = path.replace("{name}", "w1").replace("{id}", "1");
                    all.push((method.to_ascii_uppercase(), path, role.to_owned()));
                }
            }
        }
        assert!(all.len() > 40, "{all:?}");
        all
    }
}

/// A call that needs the role `operate`, and leaves the configuration as it is.
const CLEAR: &str = "/admin/response-cache/invalidate";

fn send(address: &str, key: &str, method: &str, path: &str, body: &Value) -> RawReply {
    let mut client = RawClient::connect(address);
    let body = body.to_string();
    client.send(method, path, &[("authorization", key)], body.as_bytes());
    client.reply()
}

fn rank(role: &str) -> usize {
    let at = ROLES.iter().position(|(name, _)| *name == role);
    at.unwrap_or_else(|| panic!("no role {role}"))
}

#[test]
#[contract("S1", "S3")]
fn each_call_of_the_admin_listener_needs_its_role() {
    let shared = SharedOperation::start();
    for (method, path, needed) in shared.operations() {
        for (role, token) in ROLES.into_iter().chain([("admin", OF_FILE)]) {
            let status = shared.call(token, &method, &path).status;
            let allowed = rank(role) >= rank(&needed);
            // The calls are without a body, so most of those that are allowed fail otherwise.
            assert_eq!(status != 403, allowed, "{method} {path} {role}: {status}");
            assert_ne!(status, 401, "{method} {path} {role}");
        }
    }
}

#[test]
#[contract("S3", "S11", "S17")]
fn a_refusal_names_the_missing_role_and_the_audit_names_the_caller() {
    let shared = SharedOperation::start();
    let [(_, reader), (_, operator), _] = ROLES;
    let admin = shared.router.admin();
    let key = bearer(reader);
    let refused = call(&admin, "POST", "/admin/reload", &[("authorization", &key)]);
    assert_eq!(
        (refused.status, &*refused.error_code()),
        (403, "scope_missing")
    );
    assert!(refused.text().contains("a-read"), "{}", refused.text());
    let conductor = call(&admin, "POST", "/register", &[("authorization", &key)]);
    assert_eq!(conductor.status, 403);
    assert!(conductor.text().contains("needs"), "{}", conductor.text());

    for (path, reads, operates) in [
        ("/admin/doctor", 200, 200),
        ("/admin/doctor?probe=false", 200, 200),
        ("/admin/doctor?probe=true", 403, 200),
        ("/v1/kv_events?salts=plain", 403, 403),
    ] {
        assert_eq!(shared.call(reader, "GET", path).status, reads, "{path}");
        assert_eq!(
            shared.call(operator, "GET", path).status,
            operates,
            "{path}"
        );
    }
    assert_eq!(
        shared
            .call(OF_FILE, "GET", "/v1/kv_events?salts=plain")
            .status,
        200
    );
    let operator = bearer(operator);
    let cleared = send(
        &admin,
        &operator,
        "POST",
        CLEAR,
        &json!({"clear_all": true}),
    );
    assert_eq!(cleared.status, 200, "{}", cleared.text());
    let (probe, salts) = (
        "GET /admin/doctor?probe=true",
        "GET /v1/kv_events?salts=plain",
    );
    let lines = eventually("the calls in the log", || {
        let log = shared.router.stderr();
        let lines = log.lines().filter(|line| line.contains("warmroute::audit"));
        let lines: Vec<_> = lines.map(str::to_owned).collect();
        (lines.len() >= 8).then_some(lines)
    });
    assert_eq!(lines.len(), 8, "{lines:#?}");
    for (line, parts) in lines.iter().zip([
        ["POST /admin/reload", "a-read", "403", "127.0.0.1"],
        ["POST /register", "a-read", "403", "127.0.0.1"],
        [probe, "a-read", "403", "127.0.0.1"],
        [probe, "of-file", "200", "127.0.0.1"],
        [salts, "a-read", "403", "127.0.0.1"],
        [salts, "of-file", "403", "127.0.0.1"],
        [salts, "admin token", "200", "127.0.0.1"],
        [
            "POST /admin/response-cache/invalidate",
            "of-file",
            "200",
            "127.0.0.1",
        ],
    ]) {
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    let log = shared.router.stderr();
    for (_, token) in ROLES {
        assert!(!log.contains(token));
    }
}

#[test]
#[contract("S11", "S17")]
fn a_line_of_the_audit_file_says_what_the_query_asked_for_and_refused_calls_fill_no_file() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("calls.jsonl");
    // The end of a process that was killed while it wrote.
    std::fs::write(&path, r#"{"at":"2026-01-01T00:"#).expect("the audit file");
    let tokens: Vec<Value> = ROLES
        .iter()
        .map(|(role, token)| json!({"name": role, "role": role, "token": token}))
        .collect();
    let admin = json!({"audit_log": path, "tokens": tokens});
    let router = Program::serve_with(&format!("workers: []\nadmin: {admin}\n"), &[], &[]);
    let address = router.admin();
    let [(_, reader), (_, operator), _] = ROLES;
    let (reader, operator) = (bearer(reader), bearer(operator));
    let entries = "/admin/response-cache/entries";
    let mut flood = RawClient::connect(&address);
    for _ in 0..200 {
        let headers = [("authorization", &*reader)];
        flood.send("DELETE", &format!("{entries}?tenant=b"), &headers, b"");
        assert_eq!(flood.reply().status, 403);
    }
    let as_operator = |method: &str, target: &str| {
        let headers = [("authorization", &*operator)];
        call(&address, method, target, &headers).status
    };
    assert_eq!(as_operator("DELETE", &format!("{entries}?tenant=a")), 200);
    let mistaken = format!("{entries}?tenant=a&token=the-token-of-somebody");
    assert_eq!(as_operator("DELETE", &mistaken), 400);
    assert_eq!(as_operator("GET", "/admin/doctor?probe=true"), 200);
    assert_eq!(as_operator("GET", "/admin/doctor"), 200);

    let text = std::fs::read_to_string(&path).expect("the audit file");
    let lines: Vec<Value> = text
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let (refused, allowed): (Vec<_>, Vec<_>) =
        lines.iter().partition(|line| line["caller"] == "read");
    // The flood may take more than a minute.
    assert!((60..200).contains(&refused.len()), "{}", refused.len());
    assert!(refused.iter().all(|line| line["status"] == 403));
    let allowed: Vec<_> = allowed
        .iter()
        .map(|line| (line["action"].clone(), line["status"].clone()))
        .collect();
    let expected = [
        (format!("DELETE {entries}?tenant=a"), 200),
        (format!("DELETE {entries}?tenant=a&***"), 400),
        ("GET /admin/doctor?probe=true".to_owned(), 200),
    ];
    assert_eq!(
        allowed,
        expected.map(|(action, status)| (json!(action), json!(status)))
    );
    let page = call(&address, "GET", "/metrics", &[("authorization", &operator)]);
    let page = Page::read(&page.text());
    let dropped = page.value("warmroute_audit_lines_total", &[("result", "dropped")]);
    assert!(dropped > 0.0, "{dropped}");
}

#[test]
#[contract("S3")]
fn a_token_that_two_operators_share_or_that_is_short_stops_the_start() {
    for (tokens, expected) in [
        (
            json!([{"name": "a", "token": OF_FILE}, {"name": "b", "token": OF_FILE}]),
            ["admin.tokens", "two owners have the same token"],
        ),
        (
            json!([{"name": "a", "token": "short"}]),
            ["admin.tokens[0].token", "shorter than 16 characters"],
        ),
        (
            json!([{"name": "a", "token_file": "/nowhere/token"}]),
            ["admin.tokens[0].token_file", "could not be read"],
        ),
    ] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let yaml = format!("workers: []\nadmin: {{tokens: {tokens}}}\n");
        std::fs::write(file.path(), yaml).expect("the configuration");
        let path = file.path().display().to_string();
        let ended = Program::finish(&["serve", "--config", &path]);
        assert_eq!(ended.code, Some(78), "{}", ended.stderr);
        for part in expected {
            assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        }
        assert!(!ended.stderr.contains(OF_FILE));
    }
}

#[test]
#[contract("S17")]
fn each_change_is_a_line_of_the_audit_file() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("audit").join("calls.jsonl");
    std::fs::create_dir(path.parent().expect("a folder")).expect("a directory");
    let admin = json!({
        "audit_log": path, "tokens": [{"name": "ops", "role": "admin", "token": OF_FILE}],
    });
    let router = Program::serve_with(&format!("workers: []\nadmin: {admin}\n"), &[], &[]);
    let token = bearer(OF_FILE);
    let send = |method: &str, path: &str, body: &Value| {
        send(&router.admin(), &token, method, path, body).status
    };
    let all = json!({"clear_all": true});
    let worker = json!({"name": "w", "url": "http://127.0.0.1:1", "api_key": "sk-of-a-worker"});
    assert_eq!(send("POST", "/admin/workers", &worker), 201);
    assert_eq!(send("POST", CLEAR, &all), 200);
    assert_eq!(send("GET", "/admin/workers", &Value::Null), 200);
    let text = std::fs::read_to_string(&path).expect("the audit file");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 2, "{text}");
    let [added, cleared] = [&lines[0], &lines[1]];
    for (line, action, status) in [
        (added, "POST /admin/workers", 201),
        (cleared, "POST /admin/response-cache/invalidate", 200),
    ] {
        assert_eq!(
            (&line["action"], &line["status"]),
            (&json!(action), &json!(status))
        );
        let who = [&line["caller"], &line["role"], &line["source"]];
        assert_eq!(who, [&json!("ops"), &json!("admin"), &json!("127.0.0.1")]);
    }
    assert_ne!(
        added["old"], added["new"],
        "a worker is part of the configuration"
    );
    assert_eq!(
        (&cleared["old"], &cleared["new"]),
        (&added["new"], &added["new"])
    );
    assert!(!text.contains("sk-of-a-worker") && !text.contains(OF_FILE));

    // A call does not fail for its line.
    std::fs::remove_dir_all(path.parent().expect("a folder")).expect("it can be removed");
    assert_eq!(send("POST", CLEAR, &all), 200);
    let page = call(
        &router.admin(),
        "GET",
        "/metrics",
        &[("authorization", &token)],
    );
    let page = Page::read(&page.text());
    let lines = |result| page.value("warmroute_audit_lines_total", &[("result", result)]);
    assert_eq!((lines("written"), lines("failed")), (2.0, 1.0));
}
