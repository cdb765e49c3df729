//! The NATS server that replicas share.

use event_log::LogNames;
use test_programs::ReservedPort;

use super::look::{DoctorRun, engine, look_with};
use crate::{
    harness::{Program, RawClient, RouterQueries, eventually},
    nats_server::NatsServer,
};

/// What a replica must be allowed to use, as docs/replicas.md lists it for the default names.
const PERMISSIONS: [&str; 7] = [
    "$JS.API.>",
    "$JS.ACK.>",
    "$KV.>",
    "$O.>",
    "_INBOX.>",
    "warmroute-kv.>",
    "warmroute.router.>",
];

fn look_at_bus(url: &str, keys: &str) -> DoctorRun {
    let sections = format!("replicas: {{mode: nats, nats: {{url: \"{url}\"{keys}}}}}");
    look_with(&engine(&[]), "", &sections)
}

/// Starts a server with JetStream and these lines of configuration.
fn server_with(lines: &str) -> (NatsServer, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nats.conf");
    let store = folder.path().join("store").display().to_string();
    let text = format!("jetstream {{ store_dir: {store:?} }}\n{lines}\n");
    std::fs::write(&file, text).unwrap();
    (NatsServer::start(&["-c", file.to_str().unwrap()]), folder)
}

/// A server whose only user may use these subjects.
fn server_that_permits(subjects: &[&str]) -> (NatsServer, tempfile::TempDir) {
    let list = format!("[\"{}\"]", subjects.join("\", \""));
    let user = "user: router, password: secret";
    server_with(&format!(
        "authorization {{ users: [{{ {user}, permissions: {{ publish: {list}, subscribe: {list} }} }}] }}\n\
         no_auth_user: router"
    ))
}

#[test]
fn a_server_with_jetstream_passes() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let seen = look_at_bus(&server.url(), "").green();
    assert_eq!(seen.check("router", "nats")["status"], "ok");
    let replicas = seen.check("router", "replicas");
    assert_eq!(
        (&replicas["status"], &replicas["found"]),
        (&"ok".into(), &"0".into())
    );
}

#[test]
fn no_server_is_there() {
    let nobody = format!("nats://{}", ReservedPort::new().address());
    let fix = "start nats-server -js there, or set replicas.nats.url";
    look_at_bus(&nobody, "").fails(&["router"], "nats", fix, &[]);
}

#[test]
fn the_server_has_no_jetstream() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&[]);
    let fix = "start nats-server with -js, and enable JetStream for the account";
    look_at_bus(&server.url(), "").fails(&["router"], "nats", fix, &[]);
}

#[test]
fn the_server_wants_other_credentials() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start(&["-js", "--auth", "let-me-in"]);
    let fix =
        "set replicas.nats.credentials_file to a token or a .creds file that the server accepts";
    look_at_bus(&server.url(), "").fails(&["router"], "nats", fix, &[]);
}

#[test]
fn the_credentials_file_is_not_there() {
    let fix = "correct replicas.nats.url or replicas.nats.credentials_file";
    let keys = ", credentials_file: /no/such/file";
    look_at_bus("nats://127.0.0.1:4222", keys).fails(&["router"], "nats", fix, &[]);
}

#[test]
fn the_user_may_not_use_everything() {
    test_programs::require!(NatsServer);
    let fix = "let this user publish and subscribe to {denied}";
    for (missing, denied) in [
        (&["$JS.ACK.>"][..], "$JS.ACK.>"),
        (&["$KV.>", "$O.>"], "$KV.>, $O.>"),
        (&["warmroute-kv.>"], "warmroute-kv.>"),
        (&["warmroute.router.>"], "warmroute.router.>"),
        (&["$JS.API.>"], "$JS.API.>"),
        (&["_INBOX.>"], "_INBOX.>"),
    ] {
        let permitted = PERMISSIONS.into_iter().filter(|one| !missing.contains(one));
        let (server, _folder) = server_that_permits(&permitted.collect::<Vec<_>>());
        let seen = look_at_bus(&server.url(), "");
        seen.fails(&["router"], "nats", fix, &[("denied", denied)]);
    }
}

#[test]
fn the_user_may_not_use_one_of_the_buckets() {
    test_programs::require!(NatsServer);
    let names = LogNames::new("warmroute-kv", "warmroute", "router").unwrap();
    let buckets = ["replicas", "owners", "workers", "state", "locks"];
    for missing in buckets {
        let others = buckets.iter().filter(|bucket| **bucket != missing);
        let others: Vec<String> = others
            .map(|bucket| format!("$KV.{}.>", names.bucket(bucket)))
            .collect();
        let rest = PERMISSIONS.into_iter().filter(|one| *one != "$KV.>");
        let permitted: Vec<&str> = rest.chain(others.iter().map(String::as_str)).collect();
        let (server, _folder) = server_that_permits(&permitted);
        let seen = look_at_bus(&server.url(), "");
        let fix = "let this user publish and subscribe to {denied}";
        seen.fails(&["router"], "nats", fix, &[("denied", "$KV.>")]);
    }
}

#[test]
fn the_documented_permissions_are_enough() {
    test_programs::require!(NatsServer);
    let (server, _folder) = server_that_permits(&PERMISSIONS);
    look_at_bus(&server.url(), "").green();
    let engine = engine(&[]);
    let router = || {
        let url = server.url();
        let text = format!("replicas: {{mode: nats, load_sync: true, nats: {{url: \"{url}\"}}}}");
        Program::serve_with(&text, &[format!("w1={}", engine.url())], &[]).ready(1)
    };
    let routers = [router(), router()];
    eventually("an owner, a follower and two live replicas", || {
        let get = |router: &Program, path: &str| RawClient::get(&router.admin(), path).json();
        let mut sources = routers
            .each_ref()
            .map(|router| get(router, "/admin/streams")["streams"][0]["source"].clone());
        sources.sort_by_key(ToString::to_string);
        let is_live = |router: &Program| {
            let report = get(router, "/admin/replicas");
            let all = report["replicas"].as_array().cloned().unwrap_or_default();
            all.len() == 2 && all.iter().all(|replica| replica["state"] == "live")
        };
        (sources == ["nats", "zmq"] && routers.iter().all(is_live)).then_some(())
    });
    let seen = look_at_bus(&server.url(), "").green();
    assert_eq!(seen.check("router", "replicas")["found"], "2");
}

#[test]
fn the_largest_message_is_too_small() {
    test_programs::require!(NatsServer);
    let fix = "set max_payload: 1MB or more in the configuration of nats-server";
    let (server, _folder) = server_with("max_payload: 100000");
    look_at_bus(&server.url(), "").fails(&["router"], "nats", fix, &[]);
    let (server, _folder) = server_with("max_payload: 600000");
    look_at_bus(&server.url(), "").warns("router", "nats", fix, &[]);
}

#[test]
fn the_account_has_little_storage_left() {
    test_programs::require!(NatsServer);
    let (server, _folder) = server_with(
        "accounts { A { jetstream { max_file: 1000000, max_mem: 10000000 }\n\
         users: [{ user: router, password: secret }] } }\n\
         no_auth_user: router",
    );
    let fix = "raise max_file of the account, or lower replicas.nats.retention";
    let seen = look_at_bus(&server.url(), "");
    assert_eq!(seen.warns("router", "nats", fix, &[])["found"], "1000000");
}

#[test]
fn a_replica_on_the_bus_has_other_settings() {
    test_programs::require!(NatsServer);
    let server = NatsServer::start_with_store();
    let engine = engine(&[]);
    let bus = format!(
        "replicas: {{mode: nats, nats: {{url: \"{}\"}}}}\n",
        server.url()
    );
    let other = format!("{bus}kv_events: {{block_hash_seed: 7}}\n");
    let worker = format!("w1={}", engine.url());
    let router = Program::serve_with(&other, &[worker], &[]).ready(1);
    let fix = "make replicas.namespace, replicas.component, kv_events.block_hash and kv_events.block_hash_seed equal in all replicas";
    look_with(&engine, "", &bus).fails(&["router"], "replicas", fix, &[]);
    // The router itself checks itself with its own settings.
    let report = RawClient::get(&router.admin(), "/admin/doctor").json();
    assert_eq!(report["ok"], true, "{report:#}");
}
