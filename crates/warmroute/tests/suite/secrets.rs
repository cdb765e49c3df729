//! A search for keys and secrets in everything that a router writes, shows or stores.

use std::{
    collections::BTreeMap, fmt::Write as _, fs, os::unix::fs::PermissionsExt as _, path::Path,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use contract_id::contract;
use serde_json::json;

use crate::{
    harness::{Program, RawClient, chat, eventually},
    redis_server::RedisServer,
};

/// Secrets of the configuration, by what they are for.
const TENANT: &str = "canary-key-of-a-tenant-0123456789";
const STRANGER: &str = "canary-key-of-a-stranger-0123456789";
const WORKER: &str = "canary-key-of-a-worker-0123456789";
const ADDED_WORKER: &str = "canary-key-of-an-added-worker-0123456789";
const ADMIN: &str = "canary-token-of-the-operators-0123456789";
const MAC: &str = "canary-key-of-the-cache-0123456789";
const SALTS: &str = "canary-secret-of-the-salts-0123456789";
const ALL: [&str; 7] = [TENANT, STRANGER, WORKER, ADDED_WORKER, ADMIN, MAC, SALTS];

/// Returns the secrets that stand in these bytes, as they are, in hex or in base64.
fn secrets_in(bytes: &[u8]) -> Vec<&'static str> {
    let contains = |part: &str| memchr::memmem::find(bytes, part.as_bytes()).is_some();
    let hex = |text: &str| {
        text.bytes().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    };
    // Without the last characters, which depend on what follows.
    let base64 = |text: &str| BASE64_STANDARD.encode(text)[..text.len()].to_owned();
    ALL.into_iter()
        .filter(|text| contains(text) || contains(&hex(text)) || contains(&base64(text)))
        .collect()
}

/// What a router with all these secrets leaves behind, by its source.
#[derive(Default)]
struct Artefacts(BTreeMap<String, Vec<u8>>);

impl Artefacts {
    fn add(&mut self, source: impl Into<String>, bytes: impl Into<Vec<u8>>) {
        self.0.insert(source.into(), bytes.into());
    }

    /// Adds every reply of the admin API that needs no body and ends.
    fn add_admin_replies(&mut self, admin: &str) {
        let bearer = format!("Bearer {ADMIN}");
        let get = |path: &str| {
            let mut client = RawClient::connect(admin);
            client.send("GET", path, &[("authorization", &bearer)], b"");
            client.reply()
        };
        let openapi = get("/openapi.json").json();
        let paths = openapi["paths"].as_object().expect("the paths");
        let on_admin = paths
            .iter()
            .filter(|(path, methods)| methods.get("get").is_some() && *path != "/v1/kv_events");
        let mut successes = 0;
        for (path, _) in on_admin {
            let path = path.replace("{name}", "w");
            let reply = get(&path);
            successes += u32::from(reply.status == 200);
            self.add(format!("GET {path}"), reply.text());
            self.add(
                format!("head of GET {path}"),
                format!("{:?}", reply.headers),
            );
        }
        assert!(successes > 15, "{successes} paths answer");
        for path in [
            "/admin/config?format=yaml",
            "/metrics",
            "/admin/doctor?probe=true",
        ] {
            self.add(format!("GET {path}"), get(path).text());
        }
    }

    /// Adds all keys and values of the server, uncompressed.
    fn add_redis(&mut self, redis: &RedisServer) {
        redis.ask(&["CONFIG", "SET", "rdbcompression", "no"]);
        assert_eq!(redis.ask(&["SAVE"]), ["OK"]);
        let folder = redis.ask(&["CONFIG", "GET", "dir"]).remove(1);
        let file = Path::new(&folder).join("dump.rdb");
        self.add("Redis", fs::read(file).expect("the dump"));
    }

    /// Adds all files of the folder.
    fn add_files(&mut self, folder: &Path) {
        for file in fs::read_dir(folder).expect("the folder") {
            let path = file.expect("a file").path();
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            self.add(
                format!("file {name}"),
                fs::read(&path).expect("its content"),
            );
        }
    }

    /// Returns the sources that have secrets, with these.
    fn hits(&self) -> Vec<(&str, Vec<&'static str>)> {
        let found = self
            .0
            .iter()
            .map(|(source, bytes)| (source.as_str(), secrets_in(bytes)));
        found.filter(|(_, secrets)| !secrets.is_empty()).collect()
    }
}

#[test]
#[contract("S9", "S81")]
fn no_key_or_secret_is_in_what_a_router_writes_shows_or_stores() {
    test_programs::require!(RedisServer);
    let redis = RedisServer::start();
    let engine = Program::engine(&["--speed", "20", "--api-key", WORKER]);
    let (inputs, outputs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let input = |name: &str, text: &str| {
        let path = inputs.path().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let output = |name: &str| outputs.path().join(name).display().to_string();
    let yaml = format!(
        "workers: [{{name: w, url: \"{}\", api_key: {WORKER}}}]\n\
         tenants: {{salt_secret_file: {}, api_keys: [{{name: team-a, key: {TENANT}}}]}}\n\
         admin: {{token_file: {}}}\n\
         response_cache: {{enabled: true, backend: redis, mac_key: {MAC}, redis: {{url: \"{}\"}}}}\n\
         kv_events: {{snapshot: {{path: {}, interval: 1s}}}}\n\
         decisions: {{log: {{path: {}, interval: 1s, chains: true, include_request_text: true}}}}\n\
         discovery: {{state_file: {}}}\n\
         logging: {{level: trace}}\n",
        engine.url(),
        input("salts", SALTS),
        input("token", ADMIN),
        redis.url(),
        output("index"),
        output("decisions"),
        output("workers.yaml"),
    );
    let router = Program::serve_with(&yaml, &[], &[]);
    let data = router.data();
    let mut body = chat("sim", "a question of team-a", 4);
    body["temperature"] = json!(0);
    let body = body.to_string();
    let ask = |key: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        RawClient::post_with(&data, "/v1/chat/completions", &headers, body.as_bytes())
    };
    let mut artefacts = Artefacts::default();
    let first = eventually("a reply", || {
        Some(ask(TENANT)).filter(|reply| reply.status == 200)
    });
    artefacts.add("a reply", first.text());
    eventually("a stored reply", || {
        (ask(TENANT).header("x-cache") == Some("HIT")).then_some(())
    });
    let refused = ask(STRANGER);
    assert_eq!(refused.status, 401);
    artefacts.add("a refusal", refused.text());
    let entry = json!({"name": "added", "url": "http://127.0.0.1:1", "api_key": ADDED_WORKER});
    let bearer = format!("Bearer {ADMIN}");
    let headers = [("authorization", bearer.as_str())];
    let added = RawClient::post_with(
        &router.admin(),
        "/admin/workers",
        &headers,
        entry.to_string().as_bytes(),
    );
    assert_eq!(added.status, 201, "{}", added.text());
    artefacts.add("an added worker", added.text());

    artefacts.add_admin_replies(&router.admin());
    artefacts.add_redis(&redis);
    let file = input("warmroute.yaml", &yaml);
    for format in [
        &["config", "show", &file][..],
        &["config", "show", &file, "--json"],
    ] {
        artefacts.add(format!("{format:?}"), Program::finish(format).stdout);
    }
    router.signal("TERM");
    let ended = router.wait();
    assert!(
        ended.stderr.contains("\"DEBUG\""),
        "the log has the levels for developers"
    );
    artefacts.add("the log", ended.stderr);
    artefacts.add_files(outputs.path());
    for written in ["file index", "file decisions", "file workers.yaml"] {
        assert!(
            artefacts
                .0
                .get(written)
                .is_some_and(|bytes| !bytes.is_empty()),
            "{written}"
        );
    }

    // The list of added workers needs their keys at the next start, and is its owner's alone.
    assert_eq!(
        artefacts.hits(),
        [("file workers.yaml", vec![ADDED_WORKER])]
    );
    let mode = fs::metadata(outputs.path().join("workers.yaml")).expect("the file");
    assert_eq!(mode.permissions().mode() & 0o077, 0);

    // The search finds what is there: in Redis, and in the files that the router read.
    let mut controls = Artefacts::default();
    redis.ask(&["SET", "cr:resp:control", &format!("a value with {TENANT}")]);
    controls.add_redis(&redis);
    controls.add("in base64", BASE64_STANDARD.encode(format!("{STRANGER}:")));
    controls.add_files(inputs.path());
    let expected = [
        ("Redis", vec![TENANT]),
        ("file salts", vec![SALTS]),
        ("file token", vec![ADMIN]),
        ("file warmroute.yaml", vec![TENANT, WORKER, MAC]),
        ("in base64", vec![STRANGER]),
    ];
    assert_eq!(controls.hits(), expected);
}
