//! A real NATS server, as a child process on a free port.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use net::Clock;
use tempfile::TempDir;
use test_programs::ReservedPort;

const PATIENCE: Duration = Duration::from_secs(120);

/// The server process; killed with SIGKILL when dropped.
pub(crate) struct NatsServer {
    child: Child,
    flags: Vec<String>,
    port: ReservedPort,
    folder: TempDir,
}

impl NatsServer {
    pub(crate) fn start(flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self::start_in(tempfile::tempdir().unwrap(), flags)
    }

    /// Starts one with JetStream, whose store outlives a [`NatsServer::kill`].
    pub(crate) fn start_with_store() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store").display().to_string();
        Self::start_in(folder, vec!["-js".to_owned(), "-sd".to_owned(), store])
    }

    fn start_in(folder: TempDir, flags: Vec<String>) -> Self {
        let port = ReservedPort::new();
        let child = spawn(folder.path(), &flags, &port);
        let mut server = Self {
            child,
            flags,
            port,
            folder,
        };
        server.until_it_serves(1);
        server
    }

    /// Starts it again on the same port, after [`NatsServer::kill`].
    pub(crate) fn start_again(&mut self) {
        let before = self.starts();
        self.child = spawn(self.folder.path(), &self.flags, &self.port);
        self.until_it_serves(before + 1);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal by name (`STOP`, `CONT`).
    pub(crate) fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &process])
            .status();
        assert!(sent.unwrap().success(), "kill -{name}");
    }

    /// A dialer for it, without credentials.
    pub(crate) fn dialer(&self) -> nats_client::NatsDialer {
        nats_client::NatsDialer {
            server: self.url().parse().unwrap(),
            credentials: None,
            trust: None,
            destinations: net::Destinations::Any,
            name: "test".to_owned(),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.port.address())
    }

    /// The folder for its files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// How often it has begun to serve, from its log: a connection could reach another server.
    fn starts(&self) -> usize {
        self.log().matches("Server is ready").count()
    }

    fn until_it_serves(&mut self, starts: usize) {
        let start = Clock::system().now();
        while self.starts() < starts {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("nats-server ended with {status}: {}", self.log());
            }
            assert!(
                Clock::system().now().since(start) < PATIENCE,
                "nats-server is not ready: {}",
                self.log()
            );
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

fn spawn(folder: &Path, flags: &[String], port: &ReservedPort) -> Child {
    Command::new("nats-server")
        .args(["-a", "127.0.0.1", "-p", &port.number().to_string(), "-l"])
        .arg(folder.join("log"))
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
