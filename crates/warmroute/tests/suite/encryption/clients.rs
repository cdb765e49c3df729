//! Certificates of clients: which are accepted, at every encrypted listener.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use contract_id::contract;
use tempfile::TempDir;

use super::certificates::{TestAuthority, TestClient};
use crate::harness::{Program, eventually};

const NAME: &str = "gateway.clients.test";
const REVOKED: u64 = 7;
const VALID: u64 = 8;

/// A router that asks for certificates at both listeners, with its files.
struct StrictRouter {
    folder: TempDir,
    authority: TestAuthority,
    router: Program,
}

impl StrictRouter {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = TestAuthority::new();
        authority.write_certificate(folder.path());
        fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        write_list(folder.path(), &authority.revocation_list(&[REVOKED]));
        let tls = tls(folder.path(), &format!(", client_names: [{NAME}]"));
        let config = format!("server: {{{tls}}}\nadmin: {{{tls}}}\nworkers: []\n");
        let router = Program::serve_with(&config, &[], &[]);
        Self {
            folder,
            authority,
            router,
        }
    }

    /// Writes a certificate of the router's authority.
    fn client(&self, kind: &str, client: &TestClient) -> PathBuf {
        client_folder(&self.authority, self.folder.path(), kind, client)
    }

    /// Whether both listeners answer a client that shows this certificate.
    fn answers(&self, client: Option<&Path>) -> [bool; 2] {
        [
            format!("{}/livez", self.router.data()),
            format!("{}/admin/workers", self.router.admin()),
        ]
        .map(|place| fetch(&place, client))
    }
}

fn tls(folder: &Path, more: &str) -> String {
    let file = |name: &str| folder.join(name).display().to_string();
    format!(
        "tls: {{cert: {}, key: {}, client_ca: {}, client_crl: {}{more}}}",
        file("cert.pem"),
        file("key.pem"),
        file("ca.pem"),
        file("crl.pem")
    )
}

fn write_list(folder: &Path, text: &str) {
    fs::write(folder.join("crl.pem"), text).unwrap();
}

fn client_folder(
    authority: &TestAuthority,
    folder: &Path,
    kind: &str,
    client: &TestClient,
) -> PathBuf {
    let own = folder.join(kind);
    fs::create_dir(&own).unwrap();
    authority.write_client(client, &own);
    own
}

/// Whether the reply to a request with this certificate is 200.
fn fetch(place: &str, client: Option<&Path>) -> bool {
    let mut curl = Command::new("curl");
    curl.args(["-s", "--insecure", "--max-time", "60", "-o", "/dev/null"]);
    curl.args(["-w", "%{http_code}"]);
    if let Some(folder) = client {
        curl.arg("--cert").arg(folder.join("cert.pem"));
        curl.arg("--key").arg(folder.join("key.pem"));
    }
    let output = curl
        .arg(format!("https://{place}"))
        .stderr(Stdio::null())
        .output()
        .expect("curl runs");
    output.status.success() && output.stdout == b"200"
}

fn client(serial: u64) -> TestClient {
    TestClient {
        name: NAME,
        serial,
        over: 2090,
    }
}

#[test]
#[contract("S16")]
fn a_client_needs_a_certificate_that_is_valid_named_and_not_revoked() {
    let strict = StrictRouter::start();
    let right = strict.client("right", &client(VALID));
    assert_eq!(strict.answers(Some(&right)), [true; 2]);
    let expired = TestClient {
        over: 2002,
        ..client(VALID)
    };
    let wrong_name = TestClient {
        name: "other.clients.test",
        ..client(VALID)
    };
    let stranger = TestAuthority::new();
    let folder = strict.folder.path();
    for refused in [
        None,
        Some(client_folder(&stranger, folder, "stranger", &client(VALID))),
        Some(strict.client("expired", &expired)),
        Some(strict.client("wrong name", &wrong_name)),
        Some(strict.client("revoked", &client(REVOKED))),
    ] {
        let answers = strict.answers(refused.as_deref());
        assert_eq!(answers, [false; 2], "{refused:?}");
    }
    assert_eq!(strict.answers(Some(&right)), [true; 2]);
}

#[test]
#[contract("S16")]
fn a_changed_revocation_list_is_in_force_without_a_restart() {
    let strict = StrictRouter::start();
    let folder = strict.folder.path();
    let [first, second] = [("first", VALID), ("second", REVOKED)]
        .map(|(kind, serial)| strict.client(kind, &client(serial)));
    assert_eq!(strict.answers(Some(&first)), [true; 2]);
    assert_eq!(strict.answers(Some(&second)), [false; 2]);
    write_list(folder, &strict.authority.revocation_list(&[VALID]));
    eventually("the new list at both listeners", || {
        (strict.answers(Some(&first)) == [false; 2] && strict.answers(Some(&second)) == [true; 2])
            .then_some(())
    });
    write_list(folder, "no list");
    eventually("the unusable list is reported", || {
        strict.answers(None);
        let log = strict.router.stderr();
        log.contains("no usable revocation list").then_some(())
    });
    assert_eq!(strict.answers(Some(&first)), [false; 2]);
    assert_eq!(strict.answers(Some(&second)), [true; 2]);
}

#[test]
#[contract("S16")]
fn an_unusable_revocation_list_or_name_is_a_problem_of_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    authority.write_certificate(folder.path());
    fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    let file = folder.path().join("warmroute.yaml");
    for (list, more, key) in [
        ("no list".to_owned(), "", "server.tls.client_crl"),
        (
            authority.revocation_list(&[]),
            ", client_names: [\"*.clients.test\"]",
            "server.tls.client_names",
        ),
    ] {
        write_list(folder.path(), &list);
        let tls = tls(folder.path(), more);
        fs::write(&file, format!("server: {{{tls}}}\nworkers: []\n")).unwrap();
        let file = file.to_str().unwrap();
        let refused = Program::finish(&["serve", "--listen", "127.0.0.1:0", "-c", file]);
        assert_eq!(refused.code, Some(78));
        assert!(refused.stderr.contains(key), "{}", refused.stderr);
    }
}
