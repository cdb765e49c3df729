//! Who may call which route, and what a request can never choose: its identity by another's address,
//! and where the router connects.

use contract_id::contract;
use gateway::{BodyMode, ROUTES};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    faults::fleet::{CHAT, ScriptedFleet, fine},
    harness::{Program, RawClient, RawReply, ScriptedEngine, ScriptedReply, chat, eventually},
};

pub(super) const KEY: &str = "a-clients-key-0123456789";
pub(super) const TOKEN: &str = "an-operators-token-0123456789";

/// A router with a client key and an admin token, off loopback on both listeners.
pub(super) struct ClosedRouter {
    router: Program,
    _folder: TempDir,
}

impl ClosedRouter {
    pub(super) fn start() -> Self {
        Self::start_with("")
    }

    pub(super) fn start_with(yaml: &str) -> Self {
        Self::of_config(&format!("{yaml}workers: []\n"))
    }

    fn of_config(yaml: &str) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let token = folder.path().join("token");
        std::fs::write(&token, TOKEN).expect("the token's file");
        let token = token.display().to_string();
        let flags = [
            "--listen",
            "0.0.0.0:0",
            "--admin-listen",
            "0.0.0.0:0",
            "--api-key",
            KEY,
            "--admin-token-file",
            &token,
        ];
        let router = Program::serve_with(yaml, &[], &flags);
        Self {
            router,
            _folder: folder,
        }
    }

    pub(super) fn data(&self) -> String {
        self.router.data().replace("0.0.0.0", "127.0.0.1")
    }

    pub(super) fn admin(&self) -> String {
        self.router.admin().replace("0.0.0.0", "127.0.0.1")
    }
}

pub(super) fn call(address: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> RawReply {
    let mut client = RawClient::connect(address);
    client.send(method, path, headers, b"");
    client.reply()
}

pub(super) fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

/// Every call of the operators' listener, as the router describes it.
pub(super) fn operations(closed: &ClosedRouter) -> Vec<(String, String)> {
    let token = bearer(TOKEN);
    let headers = [("authorization", &*token)];
    let document = call(&closed.admin(), "GET", "/openapi.json", &headers).json();
    let paths = document["paths"].as_object().expect("paths");
    let of_operators = |operation: &Value| {
        let security = operation["security"].as_array().expect("its security");
        security.iter().any(|it| it.get("adminToken").is_some())
    };
    let mut all = Vec::new();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().expect("methods") {
            if operation.is_object()
                && operation.get("security").is_some()
                && of_operators(operation)
            {
                let path = path.replace("{name}", "w1").replace("{id}", "1");
                all.push((method.to_ascii_uppercase(), path));
            }
        }
    }
    assert!(all.len() > 40, "{all:?}");
    all
}

/// Every route of the data listener with its scope.
pub(super) fn routes() -> impl Iterator<Item = (&'static str, String, Option<tenants::Scope>)> {
    ROUTES.iter().map(|route| {
        let below = if route.path.ends_with('/') { "x" } else { "" };
        let path = format!("{}{below}", route.path);
        (route.method.as_str(), path, route.scope)
    })
}

#[test]
#[contract("S1", "S2", "S3")]
fn every_route_of_both_listeners_needs_its_own_credential() {
    let closed = ClosedRouter::start();
    let (key, token) = (bearer(KEY), bearer(TOKEN));
    let (data, admin) = (closed.data(), closed.admin());
    let foreign = |own: &str| -> Vec<Vec<(&'static str, String)>> {
        let other = if own == KEY { &token } else { &key };
        vec![
            vec![],
            vec![("authorization", other.clone())],
            vec![("x-api-key", other.trim_start_matches("Bearer ").to_owned())],
            vec![("x-forwarded-for", "127.0.0.1".to_owned())],
            vec![("cookie", format!("token={own}"))],
        ]
    };
    let status = |address: &str, method: &str, path: &str, headers: &[(&'static str, String)]| {
        let headers: Vec<_> = headers.iter().map(|(name, it)| (*name, &**it)).collect();
        call(address, method, path, &headers).status
    };
    // The wrong ones are so many that most of the later refusals are those of a throttled address.
    let is_refused = |status: u16| [401, 429].contains(&status);
    for (method, path) in operations(&closed) {
        for headers in foreign(TOKEN) {
            let status = status(&admin, &method, &path, &headers);
            assert!(is_refused(status), "{status} {method} {path} {headers:?}");
        }
    }
    for (method, path, scope) in routes() {
        for headers in foreign(KEY) {
            let status = status(&data, method, &path, &headers);
            match scope {
                None => assert!(!is_refused(status), "{method} {path}"),
                _ => assert!(is_refused(status), "{status} {method} {path} {headers:?}"),
            }
        }
        let own = [("authorization", key.clone())];
        let status = status(&data, method, &path, &own);
        assert!(!is_refused(status), "{status} {method} {path}");
    }
    let public: Vec<_> = routes()
        .filter(|(.., scope)| scope.is_none())
        .map(|(_, path, _)| path)
        .collect();
    assert_eq!(public, ["/health", "/livez", "/readyz"]);
    // An operator's route on the clients' listener, and the reverse, is none.
    let none = call(&data, "GET", "/admin/workers", &[("authorization", &token)]);
    assert_eq!(none.status, 404);
    let none = call(&admin, "POST", CHAT, &[("authorization", &token)]);
    assert_eq!(none.status, 404);
    assert!(ROUTES.iter().any(|route| route.body == BodyMode::Limited));
}

#[test]
#[contract("S1", "S13")]
fn health_names_no_worker_to_a_caller_without_a_valid_key() {
    let worker = "{name: hidden, url: 'https://127.0.0.1:1', tls: {insecure_skip_verify: true}}";
    let closed = ClosedRouter::of_config(&format!("workers: [{worker}]\n"));
    let (data, key, wrong) = (closed.data(), bearer(KEY), bearer("a-guessed-key"));
    let health = |headers: &[(&str, &str)]| {
        let reply = call(&data, "GET", "/health", headers);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    };
    let named = eventually("the worker is listed", || {
        let health = health(&[("authorization", &*key)]);
        (health["degraded"] == json!(["tls:hidden"])).then_some(health)
    });
    for headers in [
        &[][..],
        &[("authorization", &*wrong)],
        &[("authorization", &*key), ("authorization", &*key)],
        &[("authorization", &*key), ("x-api-key", "another")],
    ] {
        let health = health(headers);
        assert_eq!(health["degraded"], json!(["tls"]), "{headers:?}");
        for field in ["status", "workers"] {
            assert_eq!(health[field], named[field], "{headers:?}");
        }
    }
    // A key that is guessed here is as wrong as anywhere, and the probe is answered all the same.
    let mut guesser = RawClient::connect(&data);
    for _ in 0..100 {
        guesser.send("GET", "/health", &[("authorization", &*wrong)], b"");
        assert_eq!(guesser.reply().status, 200);
    }
    let throttled = call(&data, "GET", "/v1/models", &[("authorization", &*wrong)]);
    assert_eq!(throttled.status, 429, "{}", throttled.text());
    assert_eq!(health(&[("authorization", &*key)]), named);
}

#[test]
#[contract("S6")]
fn two_authorization_fields_are_refused_on_both_listeners_whatever_they_hold() {
    let closed = ClosedRouter::start();
    for (address, path, right) in [
        (closed.data(), "/v1/models", bearer(KEY)),
        (closed.admin(), "/admin/workers", bearer(TOKEN)),
    ] {
        let wrong = bearer("wrong");
        for (one, other) in [(&right, &right), (&right, &wrong), (&wrong, &right)] {
            let fields = [("authorization", &**one), ("authorization", &**other)];
            let reply = call(&address, "GET", path, &fields);
            let found = (reply.status, reply.error_code());
            assert_eq!(found, (400, "invalid_request".into()), "{path} {fields:?}");
        }
        let differing = [("authorization", &*right), ("x-api-key", "other")];
        let beside = call(&address, "GET", path, &differing).status;
        // The admin listener reads no client key.
        assert_eq!(beside, if path == "/v1/models" { 401 } else { 200 });
        let one = call(&address, "GET", path, &[("authorization", &*right)]);
        assert_eq!(one.status, 200, "{}", one.text());
    }
}

#[test]
#[contract("S18")]
fn a_forwarded_address_never_counts_as_this_machine() {
    let closed = ClosedRouter::start();
    for name in ["x-forwarded-for", "x-real-ip", "forwarded", "x-client-ip"] {
        for value in ["127.0.0.1", "::1", "for=127.0.0.1"] {
            let headers = [(name, value)];
            let data = call(&closed.data(), "GET", "/v1/models", &headers);
            let admin = call(&closed.admin(), "GET", "/admin/workers", &headers);
            assert_eq!((data.status, admin.status), (401, 401), "{name}: {value}");
        }
    }
}

#[test]
#[contract("S4")]
fn an_unusual_host_is_refused_before_the_key_is_looked_at() {
    let closed = ClosedRouter::start();
    for (target, host) in [
        ("/v1/models", "host: x/?\r\n"),
        ("/v1/models", "host: a#\r\n"),
        ("/v1/models", "host: u@h\r\n"),
        ("/v1/models", "host: a\r\nhost: a\r\n"),
        ("/v1/models", "host: a\r\nhost: b\r\n"),
        ("/v1/models", "host: \r\n"),
        ("http://elsewhere/v1/models", "host: a\r\n"),
        ("http://elsewhere/admin/workers", "host: a\r\n"),
    ] {
        for address in [closed.data(), closed.admin()] {
            let mut client = RawClient::connect(&address);
            let head = format!("GET {target} HTTP/1.1\r\n{host}\r\n");
            client.send_bytes(head.as_bytes());
            let status = client.reply().status;
            // Whatever the host is, nobody gets in by it.
            let refused = if address == closed.data() && !target.contains("/admin") {
                [400, 400]
            } else {
                [400, 401]
            };
            assert!(
                refused.contains(&status) || target.contains("/admin") && status == 404,
                "{address} {target} {host:?}: {status}"
            );
        }
    }
}

#[test]
#[contract("S36")]
fn the_router_is_no_open_proxy() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let elsewhere = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let data = scripted.router.data();
    let other = elsewhere.address().to_owned();
    for (line, statuses) in [
        (format!("CONNECT {other} HTTP/1.1"), &[400, 405, 501][..]),
        ("TRACE /v1/models HTTP/1.1".to_owned(), &[405, 501]),
        ("TRACE /nowhere HTTP/1.1".to_owned(), &[405, 501]),
        ("BREW /v1/models HTTP/1.1".to_owned(), &[405, 501]),
        ("BREW /nowhere HTTP/1.1".to_owned(), &[405, 501]),
        (format!("GET http://{other}/v1/models HTTP/1.1"), &[400]),
        (format!("GET http://{other}/ HTTP/1.1"), &[400, 404]),
    ] {
        let mut client = RawClient::connect(&data);
        client.send_bytes(format!("{line}\r\nhost: {data}\r\n\r\n").as_bytes());
        let status = client.head().status;
        assert!(statuses.contains(&status), "{line}: {status}");
    }
    assert_eq!((elsewhere.requests(), scripted.requests()), (0, 0));
}

#[test]
#[contract("S42")]
fn nothing_in_a_request_chooses_where_the_router_connects() {
    let scripted = ScriptedFleet::one(ScriptedReply::whole(fine()), "");
    let elsewhere = ScriptedEngine::start(ScriptedReply::whole(fine()));
    let (data, other) = (scripted.router.data(), elsewhere.url());
    let mut body = chat("m", "hi", 1);
    for key in ["api_base", "base_url", "endpoint", "url", "target"] {
        body[key] = json!(other);
    }
    let host = other.trim_start_matches("http://");
    let headers = [
        ("target-pod", host),
        ("x-prefiller-host-port", host),
        ("x-smg-target-worker", &*other),
        ("x-original-url", &*other),
        ("x-forwarded-host", host),
        ("x-gateway-destination-endpoint", host),
    ];
    let reply = RawClient::post_with(&data, CHAT, &headers, body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    // Of the router's own headers only the name of a worker counts.
    for (worker, status) in [(&*other, 400), (host, 400)] {
        let headers = [("x-warmroute-worker", worker)];
        let reply = RawClient::post_with(&data, CHAT, &headers, body.to_string().as_bytes());
        assert_eq!(reply.status, status, "{}", reply.text());
    }
    assert_eq!((elsewhere.requests(), scripted.requests()), (0, 1));
}
