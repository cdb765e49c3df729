//! No spelling of a path, a method, a host or a credential gets past the check of the key: what is
//! not refused is a spelling that no route has.

use contract_id::contract;
use tenants::Scope;

use super::access::{ClosedRouter, KEY, TOKEN, bearer, operations, routes};
use crate::harness::{
    Program, RawClient, RouterQueries as _, ScriptedEngine, ScriptedReply, chat, json_reply,
};

/// A request, from its method to its last header field.
struct Attempt {
    method: String,
    target: String,
    fields: String,
}

/// Spellings that some server or proxy takes for `path`.
fn targets(path: &str) -> Vec<String> {
    let below = &path[1..];
    let (head, tail) = path.split_at(path.len() - 1);
    let encoded = |byte: u8| format!("%{byte:02x}");
    let all: String = path
        .bytes()
        .map(|byte| {
            if byte == b'/' {
                "/".to_owned()
            } else {
                encoded(byte)
            }
        })
        .collect();
    let last = encoded(tail.as_bytes()[0]);
    let first_upper = format!("/{}{}", below[..1].to_ascii_uppercase(), &below[1..]);
    let mut targets: Vec<String> = [
        "/", "//", "/.", "/..", "/./", "/x/..", ";", ";a=b", ";/", "%00", "%0a", "%0d%0a", "%20",
        "%09", "%23", "%3f", "%2f", "%5c", ".", "..", ".json", ".html", "~", "*", "\\", "?",
        "?a=b", "?/health", "&", "%", "%zz", "\u{7f}",
    ]
    .iter()
    .map(|end| format!("{path}{end}"))
    .collect();
    targets.extend(
        [
            "/",
            "/.",
            "/./.",
            "/x/..",
            "/..",
            "/%2e",
            "/%2e%2e",
            "/..;",
            "/;",
            "/\\",
            "/%2f",
            "/%5c",
            "/health/..",
            "/health/%2e%2e",
            "/health/..;",
            "/health;",
            "/health",
            "/livez/..",
            "/readyz/%2e%2e",
            "/metrics/..",
            "/v1",
            "/v2",
            "/api",
            "/admin",
            "/public",
            "/static/..",
            "http://127.0.0.1",
            "http://localhost",
            "http://127.0.0.1:1",
            "https://127.0.0.1",
            "http://user@127.0.0.1",
            "//127.0.0.1",
            "/%00",
            "/%252e%252e",
            "/%c0%ae%c0%ae",
            "/%c0%af",
            "/%ef%bc%8f",
        ]
        .iter()
        .map(|start| format!("{start}{path}")),
    );
    targets.extend([
        path.to_owned(),
        below.to_owned(),
        path.to_ascii_uppercase(),
        first_upper,
        all,
        format!("{head}{last}"),
        format!("{head}%25{}", &last[1..]),
        path.replace('/', "//"),
        path.replace('/', "/./"),
        path.replace('/', "\\"),
        path.replace('/', "%2f"),
        path.replace('/', "%252f"),
        path.replacen('1', "%31", 1),
        path.replacen('e', "\u{435}", 1),
        "*".to_owned(),
    ]);
    targets
}

const METHODS: [&str; 18] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND",
    "MKCOL", "SEARCH", "PURGE", "get", "Post", "POST\t", "GET/", "X",
];

const HOSTS: [&str; 16] = [
    "host: localhost\r\n",
    "host: 127.0.0.1\r\n",
    "host: [::1]\r\n",
    "host: 127.0.0.1:9091\r\n",
    "host: admin\r\n",
    "host: \r\n",
    "",
    "host: a\r\nhost: 127.0.0.1\r\n",
    "host: 127.0.0.1/health\r\n",
    "host: 127.0.0.1?\r\n",
    "host: u@127.0.0.1\r\n",
    "host: 2130706433\r\n",
    "host: 0x7f.1\r\n",
    "host: localhost.\r\n",
    "Host : localhost\r\n",
    "host: internal\r\nx-forwarded-host: localhost\r\n",
];

/// Fields that some server trusts in place of a credential, and credentials that are not one.
fn fields(key: &str) -> Vec<String> {
    let (most, upper) = (&key[..key.len() - 1], key.to_ascii_uppercase());
    let mut all: Vec<String> = [
        "x-original-url: /health",
        "x-rewrite-url: /health",
        "x-forwarded-uri: /health",
        "x-forwarded-path: /health",
        "x-forwarded-prefix: /health",
        "x-http-method-override: GET",
        "x-http-method: GET",
        "x-method-override: OPTIONS",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-for: ::1",
        "x-real-ip: 127.0.0.1",
        "x-client-ip: 127.0.0.1",
        "x-remote-addr: 127.0.0.1",
        "x-originating-ip: 127.0.0.1",
        "true-client-ip: 127.0.0.1",
        "cf-connecting-ip: ::1",
        "forwarded: for=127.0.0.1;proto=https",
        "x-forwarded-user: admin",
        "x-remote-user: admin",
        "remote-user: admin",
        "x-authenticated: true",
        "x-admin: true",
        "x-internal: true",
        "x-user: default",
        "x-tenant: default",
        "x-ssl-client-verify: SUCCESS",
        "via: 1.1 localhost",
        "origin: http://127.0.0.1",
        "referer: http://127.0.0.1/",
        "sec-fetch-site: same-origin",
        "x-requested-with: XMLHttpRequest",
        "authorization:",
        "authorization: Bearer",
        "authorization: Bearer null",
        "authorization: Bearer undefined",
        "authorization: Bearer *",
        "authorization: Bearer \"\"",
        "authorization: Basic Og==",
        "authorization: Negotiate",
        "authorization: Digest username=\"\"",
        "x-api-key:",
        "x-api-key: *",
        "x-router-key: ",
        "x-admin-token: true",
        "cookie: session=admin",
    ]
    .map(str::to_owned)
    .into();
    all.extend([
        format!("authorization: {key}"),
        format!("authorization: Basic {key}"),
        format!("authorization: Token {key}"),
        format!("authorization: Bearer {most}"),
        format!("authorization: Bearer {key}x"),
        format!("authorization: Bearer {key},"),
        format!("authorization: Bearer {key}\0"),
        format!("authorization: Bearer {upper}"),
        format!("authorization: Bearer \"{key}\""),
        format!(
            "authorization: Bearer {most}%{:02x}",
            key.as_bytes()[key.len() - 1]
        ),
        format!("authorization: Bearer wrong\r\nauthorization: Bearer {key}"),
        format!("authorization: Bearer {most}\r\nx-api-key: wrong"),
        format!("authorization : Bearer {key}"),
        format!(" authorization: Bearer {key}"),
        format!("authorization:\r\n Bearer {key}"),
        format!("x-a: b\nauthorization: Bearer {key}"),
        format!("proxy-authorization: Bearer {key}"),
        format!("x-authorization: Bearer {key}"),
        format!("x_api_key: {key}"),
        format!("x-api_key: {key}"),
        format!("x-api-keys: {key}"),
        format!("x-api-key: Bearer {key}"),
        format!("x-api-key: {most}"),
        format!("cookie: api_key={key}; authorization=Bearer {key}"),
        format!("referer: http://127.0.0.1/?api_key={key}"),
        format!("sec-websocket-protocol: openai-insecure-api-key.{most}"),
        format!("connection: authorization\r\nauthorization: Bearer {most}"),
    ]);
    all
}

/// Every attempt at one route. Those with fields of their own have no other credential.
fn attempts(method: &str, path: &str, key: &str) -> (Vec<Attempt>, Vec<Attempt>) {
    let attempt = |method: &str, target: &str, fields: &str| Attempt {
        method: method.to_owned(),
        target: target.to_owned(),
        fields: fields.to_owned(),
    };
    let host = "host: 127.0.0.1\r\n";
    let mut spelled: Vec<_> = targets(path)
        .iter()
        .map(|target| attempt(method, target, host))
        .collect();
    spelled.extend(METHODS.map(|method| attempt(method, path, host)));
    spelled.extend(HOSTS.map(|host| attempt(method, path, host)));
    let mut alone: Vec<_> = fields(key)
        .iter()
        .map(|field| attempt(method, path, &format!("{host}{field}\r\n")))
        .collect();
    let query = [
        "api_key",
        "api-key",
        "key",
        "token",
        "access_token",
        "authorization",
    ];
    alone.extend(query.map(|name| attempt(method, &format!("{path}?{name}={key}"), host)));
    (spelled, alone)
}

/// Sends attempts over one connection for as long as the other side keeps it.
struct Attacker {
    address: String,
    client: Option<RawClient>,
    made: usize,
}

impl Attacker {
    fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            client: None,
            made: 0,
        }
    }

    /// Checks that the attempt is refused.
    fn check(&mut self, attempt: &Attempt, credential: &str) {
        let Attempt {
            method,
            target,
            fields,
        } = attempt;
        let body = chat("m", "hi", 1).to_string();
        let length = body.len();
        let head = format!(
            "{method} {target} HTTP/1.1\r\n{fields}{credential}content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        let mut client = self
            .client
            .take()
            .unwrap_or_else(|| RawClient::connect(&self.address));
        // The other side may close before it has read all.
        let _ = client.offer_bytes(&[head.as_bytes(), body.as_bytes()].concat());
        let reply = client.head();
        let status = reply.status;
        assert!((400..600).contains(&status), "{status} for {head:?}");
        self.made += 1;
        // Others may be closed, or have no body.
        if matches!(status, 401 | 403 | 404)
            && method != "HEAD"
            && reply.header("connection").is_none()
        {
            client.body(reply);
            self.client = Some(client);
        }
    }

    /// Makes every attempt at a route without a key and with each of these credentials.
    fn attack(&mut self, (method, path): (&str, &str), key: &str, credentials: &[String]) {
        let (spelled, alone) = attempts(method, path, key);
        for attempt in &spelled {
            self.check(attempt, "");
            for credential in credentials {
                self.check(attempt, &format!("authorization: {credential}\r\n"));
            }
        }
        for attempt in &alone {
            self.check(attempt, "");
        }
    }
}

const SCOPES: [(Scope, &str); 6] = [
    (Scope::Chat, "chat"),
    (Scope::Embeddings, "embeddings"),
    (Scope::Media, "media"),
    (Scope::Tokenize, "tokenize"),
    (Scope::Route, "route"),
    (Scope::Models, "models"),
];

/// A tenant with every scope, and one for each scope that has all others.
fn tenants() -> String {
    let all: Vec<&str> = SCOPES
        .iter()
        .map(|(_, name)| *name)
        .chain(["overrides"])
        .collect();
    let entry = |without: &str, key: &str| {
        let scopes: Vec<_> = all
            .iter()
            .filter(|name| **name != without)
            .copied()
            .collect();
        format!(
            "- {{name: without-{without}, key: {key}, scopes: [{}]}}\n",
            scopes.join(", ")
        )
    };
    let less = SCOPES
        .iter()
        .map(|(_, name)| entry(name, &format!("key-without-{name}")));
    format!(
        "api_keys:\n{}{}",
        entry("nothing", KEY),
        less.collect::<String>()
    )
}

#[test]
#[contract("G20", "S2", "S4")]
fn no_spelling_of_a_request_gets_past_the_key_of_a_client() {
    let engine = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "{}")));
    // What a bypass would find there.
    engine.answer("/v1/responses/x", "200 OK", "{}");
    let router = Program::serve_with(&tenants(), &[engine.url()], &[]).ready(1);
    let data = router.data();
    let allowed = RawClient::post_with(
        &data,
        "/v1/chat/completions",
        &[("x-api-key", KEY)],
        chat("m", "hi", 1).to_string().as_bytes(),
    );
    assert_eq!(
        (allowed.status, engine.requests()),
        (200, 1),
        "the positive control"
    );
    engine.forget();
    let mut attacker = Attacker::new(&data);
    for (method, path, scope) in routes() {
        let Some(scope) = scope else { continue };
        let (_, name) = SCOPES
            .iter()
            .find(|(known, _)| *known == scope)
            .expect("a scope of a route");
        let credentials = [bearer("wrong"), bearer(&format!("key-without-{name}"))];
        attacker.attack((method, &path), KEY, &credentials);
    }
    assert_eq!(engine.requests(), 1, "after {} attempts", attacker.made);
    assert!(engine.seen_lines().is_empty());
    assert!(attacker.made > 5_000, "{}", attacker.made);
}

#[test]
#[contract("G20", "S1", "S3")]
fn no_spelling_of_a_request_gets_past_the_token_of_the_operators() {
    let closed = ClosedRouter::start();
    let admin = closed.admin();
    let mut attacker = Attacker::new(&admin);
    for (method, path) in operations(&closed) {
        attacker.attack((&method, &path), TOKEN, &[bearer(KEY)]);
    }
    assert!(attacker.made > 5_000, "{}", attacker.made);
}
