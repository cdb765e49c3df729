//! Workers behind `https://`.

use contract_id::contract;

use super::{certificates::TestAuthority, front::TlsFront};
use crate::harness::{Program, RawClient, RouterQueries as _, SimControls as _, chat, eventually};

/// An engine, a TLS front before it, and the folder with its certificates.
struct EncryptedWorker {
    engine: Program,
    front: TlsFront,
    folder: tempfile::TempDir,
}

impl EncryptedWorker {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = TestAuthority::new();
        authority.write_certificate(folder.path());
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        let engine = Program::engine(&["--speed", "20"]);
        let front = TlsFront::before(&engine.data(), folder.path());
        Self {
            engine,
            front,
            folder,
        }
    }

    fn router(&self, tls: &str) -> Program {
        let port = self.front.port;
        let tls = tls.replace(
            "CA",
            &self.folder.path().join("ca.pem").display().to_string(),
        );
        Program::serve_with(
            &format!("workers: [{{name: w1, url: \"https://127.0.0.1:{port}\", {tls}}}]\n"),
            &[],
            &[],
        )
    }
}

fn chat_status(router: &Program) -> u16 {
    RawClient::post(
        &router.data(),
        "/v1/chat/completions",
        chat("sim", "Hello", 3).to_string().as_bytes(),
    )
    .status
}

#[test]
#[contract("S78")]
fn an_encrypted_worker_is_used_where_its_authority_is_trusted() {
    let encrypted = EncryptedWorker::start();
    let router = encrypted.router("tls: {ca: CA}").ready(1);
    for _ in 0..3 {
        assert_eq!(chat_status(&router), 200);
    }
    let health = RawClient::get(&router.data(), "/health").json();
    assert_eq!(
        (&health["status"], &health["degraded"]),
        (&"ok".into(), &serde_json::json!([]))
    );
    assert!(router.metric("warmroute_degraded", "part=\"tls\"") < 0.5);
    assert!(
        router.workers()[0]["url"]
            .as_str()
            .unwrap()
            .starts_with("https://127.0.0.1:")
    );
}

#[test]
#[contract("S78")]
fn a_worker_with_an_untrusted_certificate_gets_no_request() {
    let encrypted = EncryptedWorker::start();
    let router = encrypted.router("tls: {}");
    let error = eventually("the refusal is reported", || {
        router.workers()[0]["last_error"]
            .as_str()
            .map(str::to_owned)
    });
    assert!(
        error.contains("could not prove who it is") && error.contains("tls.ca"),
        "{error}"
    );
    assert_eq!(chat_status(&router), 503);
    assert_eq!(encrypted.engine.stats()["requests"], 0);
}

#[test]
#[contract("S78")]
fn a_worker_without_verification_keeps_the_router_degraded() {
    let encrypted = EncryptedWorker::start();
    let router = encrypted
        .router("tls: {insecure_skip_verify: true}")
        .ready(1);
    assert_eq!(chat_status(&router), 200);
    let health = RawClient::get(&router.data(), "/health").json();
    assert_eq!(
        (&health["status"], &health["degraded"]),
        (&"degraded".into(), &serde_json::json!(["tls:w1"]))
    );
    assert!(router.metric("warmroute_degraded", "part=\"tls\"") > 0.5);
}
