//! A real NATS server, as a child process on a free port.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use net::Clock;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

/// Says so if there is no `nats-server` in the PATH.
pub(crate) fn nats_is_missing() -> bool {
    let found = Command::new("nats-server").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let missing = !found.is_ok_and(|status| status.success());
    if missing {
        eprintln!("SKIPPED: there is no nats-server in the PATH, nothing was checked over NATS; install nats-server");
    }
    missing
}

/// Killed, as by `kill -9`, when dropped.
pub(crate) struct NatsServer {
    child: Child,
    flags: Vec<String>,
    port: u16,
    folder: TempDir,
}

impl NatsServer {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let child = spawn(folder.path(), &flags, "-1");
        let ports = folder.path().join(format!("nats-server_{}.ports", child.id()));
        let mut server = Self { child, flags, port: 0, folder };
        server.until("its ports", |server| {
            // The file may be there before its text.
            let text = fs::read_to_string(&ports).unwrap_or_default();
            let port = text.rsplit(':').next().and_then(|rest| rest.split('"').next()).unwrap_or_default();
            server.port = port.parse().unwrap_or(0);
            server.port != 0
        });
        server
    }

    /// The same port again, after [`NatsServer::kill`].
    pub(crate) fn start_again(&mut self) {
        let port = self.port.to_string();
        self.child = spawn(self.folder.path(), &self.flags, &port);
        self.until("its listener", |server| TcpStream::connect(("127.0.0.1", server.port)).is_ok());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Where files for it may lie.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let start = Clock::system().now();
        while !is_so(self) {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("nats-server ended with {status}: {}", self.log());
            }
            assert!(Clock::system().now().since(start) < PATIENCE, "nats-server never showed {what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, flags: &[String], port: &str) -> Child {
    Command::new("nats-server")
        .args(["-a", "127.0.0.1", "-p", port, "--ports_file_dir"])
        .arg(folder)
        .arg("-l")
        .arg(folder.join("log"))
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
