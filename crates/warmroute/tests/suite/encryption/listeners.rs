//! TLS listeners, additional listeners and the probe listener.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use contract_id::contract;

use super::{
    certificates::TestAuthority,
    front::{get, trust_roots},
};
use crate::harness::{self, Program, RawClient, RouterQueries as _, eventually};

fn tls(folder: &Path, more: &str) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    format!(
        "tls: {{cert: {}, key: {}{more}}}",
        file("cert.pem"),
        file("key.pem")
    )
}

#[test]
#[contract("S78")]
fn both_listeners_are_encrypted_and_reload_their_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (TestAuthority::new(), TestAuthority::new());
    first.write_certificate(folder.path());
    let engine = Program::engine(&[]);
    let tls = tls(folder.path(), "");
    let router = Program::serve_with(
        &format!("server: {{{tls}}}\nadmin: {{{tls}}}\n"),
        &[engine.url()],
        &["--metrics-listen", "127.0.0.1:0"],
    );
    let (old, new) = (trust_roots(&first.pem()), trust_roots(&second.pem()));
    eventually("the worker is ready", || {
        let ready = get(&router.data(), "/readyz", &old).unwrap();
        (ready.status == 200).then_some(())
    });
    assert_eq!(
        get(&router.admin(), "/admin/workers", &old).unwrap().status,
        200
    );
    // The metrics have the admin listener's certificate.
    let metrics = router.ready["metrics"].as_str().unwrap().to_owned();
    assert_eq!(get(&metrics, "/metrics", &old).unwrap().status, 200);
    assert!(
        get(&router.data(), "/livez", &new).is_err(),
        "its authority has not signed the certificate yet"
    );

    second.write_certificate(folder.path());
    eventually("the new certificate is shown", || {
        get(&router.data(), "/livez", &new).ok()
    });
    eventually("the new certificate at the admin listener", || {
        get(&router.admin(), "/admin/workers", &new).ok()
    });
    eventually("the new certificate at the metrics listener", || {
        get(&metrics, "/metrics", &new).ok()
    });
    assert!(get(&router.data(), "/livez", &old).is_err());

    std::fs::write(folder.path().join("cert.pem"), "no certificate").unwrap();
    eventually("the unusable certificate is reported", || {
        router.stderr().contains("stays in force").then_some(())
    });
    assert_eq!(get(&router.data(), "/livez", &new).unwrap().status, 200);
}

#[test]
fn clients_without_a_certificate_are_accepted_only_where_none_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    authority.write_certificate(folder.path());
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let strict = tls(folder.path(), &format!(", client_ca: {}", ca.display()));
    let router = Program::serve_with(&format!("server: {{{strict}}}\nworkers: []\n"), &[], &[]);
    assert!(get(&router.data(), "/livez", &trust_roots(&authority.pem())).is_err());
    assert_eq!(
        RawClient::get(&router.admin(), "/admin/workers").status,
        200
    );
}

#[test]
#[contract("S16")]
fn the_indexer_is_encrypted_and_asks_for_certificates_as_the_admin_listener_does() {
    let folder = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    authority.write_certificate(folder.path());
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let file = folder.path().join("warmroute.yaml");
    let indexer = |more: &str| {
        let admin = tls(folder.path(), more);
        std::fs::write(&file, format!("admin: {{{admin}}}\nworkers: []\n")).unwrap();
        let file = file.to_str().unwrap();
        Program::start(&["indexer", "--listen", "127.0.0.1:0", "-c", file])
    };
    let encrypted = indexer("");
    let trust = trust_roots(&authority.pem());
    assert_eq!(
        get(&encrypted.data(), "/services", &trust).unwrap().status,
        200
    );
    let strict = indexer(&format!(", client_ca: {}", ca.display()));
    assert!(get(&strict.data(), "/services", &trust).is_err());
}

#[test]
#[contract("S78")]
fn a_key_readable_by_others_causes_a_warning_and_an_invalid_one_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    TestAuthority::new().write_certificate(folder.path());
    let key = folder.path().join("key.pem");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let config = format!("server: {{{}}}\nworkers: []\n", tls(folder.path(), ""));
    let router = Program::serve_with(&config, &[], &[]);
    eventually("the warning", || {
        router.stderr().contains("chmod 600").then_some(())
    });

    let file = folder.path().join("warmroute.yaml");
    std::fs::write(&file, config).unwrap();
    std::fs::write(&key, "no key").unwrap();
    let refused = Program::finish(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "-c",
        file.to_str().unwrap(),
    ]);
    assert_eq!(refused.code, Some(78));
    assert!(
        refused.stderr.contains("server.tls.key") && refused.stderr.contains("PEM"),
        "{}",
        refused.stderr
    );
}

#[test]
fn requests_are_served_at_every_address_and_probes_at_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("router.sock");
    let engine = Program::engine(&[]);
    let config = format!(
        "server: {{also_listen: [\"127.0.0.1:0\", \"unix:{}\"], probe_listen: \"127.0.0.1:0\"}}\n\
         health_checks: {{interval: 1s, unhealthy_threshold: 1}}\n",
        socket.display()
    );
    let router = Program::serve_with(&config, &[engine.url()], &[]).ready(1);
    let also = router.ready["also"].as_array().unwrap();
    assert_eq!(also.len(), 2);
    assert_eq!(
        RawClient::get(also[0].as_str().unwrap(), "/v1/models").status,
        200
    );
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream
        .write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(
        reply.starts_with("HTTP/1.1 200") && reply.contains("\"sim\""),
        "{reply}"
    );

    let probe = router.ready["probe"].as_str().unwrap().to_owned();
    for path in ["/livez", "/readyz"] {
        assert_eq!(RawClient::get(&probe, path).json()["status"], "ok");
    }
    assert_eq!(RawClient::get(&probe, "/v1/models").status, 404);
    drop(engine);
    eventually("nothing is ready", || {
        (RawClient::get(&probe, "/readyz").status == 503).then_some(())
    });
    assert_eq!(RawClient::get(&probe, "/livez").status, 200);
}

#[test]
fn a_draining_router_is_live_but_not_ready_on_the_probe_listener() {
    let engine = Program::engine(&["--itl-ms", "20"]);
    let router = Program::serve_with(
        "server: {probe_listen: \"127.0.0.1:0\"}\n",
        &[engine.url()],
        &[],
    )
    .ready(1);
    let probe = router.ready["probe"].as_str().unwrap().to_owned();
    let body = harness::streamed(harness::chat("sim", "Hello", 5_000));
    let mut running = RawClient::chat(&router.data(), &body);
    running.read_until("content");
    router.signal("TERM");
    let ready = eventually("readiness ends", || {
        let ready = RawClient::get(&probe, "/readyz");
        (ready.status == 503).then_some(ready)
    });
    assert_eq!(ready.json()["status"], "draining");
    assert_eq!(RawClient::get(&probe, "/livez").status, 200);
    drop(running);
    assert_eq!(router.wait().code, Some(0));
}
