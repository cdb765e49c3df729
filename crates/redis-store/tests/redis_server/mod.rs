//! A real Redis server, as a child process on a free port, and a client that knows nothing but its protocol.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use net::Clock;
use tempfile::TempDir;

/// Longer than anything here takes; only a broken test waits it out.
const PATIENCE: Duration = Duration::from_secs(20);

/// Says so if there is no `redis-server` in the PATH.
pub fn redis_is_missing() -> bool {
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let missing = !found.is_ok_and(|status| status.success());
    if missing {
        eprintln!(
            "SKIPPED: there is no redis-server in the PATH, nothing was checked with Redis; install redis-server"
        );
    }
    missing
}

/// Killed, as by `kill -9`, when dropped. It writes nothing to disk, so one that is started again is empty.
pub struct RedisServer {
    child: Child,
    flags: Vec<String>,
    port: u16,
    folder: TempDir,
}

impl RedisServer {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        // Somebody else may take the port in between.
        for _ in 0..10 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut child = spawn(folder.path(), &flags, port);
            if is_ready(&mut child, port) {
                return Self { child, flags, port, folder };
            }
        }
        panic!(
            "redis-server never became ready: {}",
            fs::read_to_string(folder.path().join("log")).unwrap_or_default()
        );
    }

    /// The same port again, after [`RedisServer::kill`].
    pub fn start_again(&mut self) {
        self.child = spawn(self.folder.path(), &self.flags, self.port);
        assert!(is_ready(&mut self.child, self.port), "redis-server did not come back");
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// It keeps its connections and says nothing.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    pub fn resume(&self) {
        self.signal("CONT");
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What it answers to one command, every text of it in order; nothing is `(nil)`.
    pub fn ask(&self, words: &[&str]) -> Vec<String> {
        RawRedis::connect(self.port).ask(words)
    }

    pub fn client(&self) -> RawRedis {
        RawRedis::connect(self.port)
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{name}");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, flags: &[String], port: u16) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(folder)
        .arg("--logfile")
        .arg(folder.join("log"))
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// False: it has ended.
fn is_ready(child: &mut Child, port: u16) -> bool {
    let start = Clock::system().now();
    while Clock::system().now().since(start) < PATIENCE {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// One connection.
pub struct RawRedis(BufReader<TcpStream>);

impl RawRedis {
    fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn ask(&mut self, words: &[&str]) -> Vec<String> {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
        let mut found = Vec::new();
        self.read(&mut found);
        found
    }

    /// The next line of whatever comes.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn read(&mut self, found: &mut Vec<String>) {
        let line = self.line();
        let rest = &line[1..];
        match (line.as_bytes()[0], rest) {
            (b'$' | b'*', "-1") => found.push("(nil)".to_owned()),
            (b'$', length) => {
                let mut text = vec![0; length.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut text).unwrap();
                text.truncate(text.len() - 2);
                found.push(String::from_utf8(text).unwrap());
            }
            (b'*', count) => (0..count.parse::<usize>().unwrap()).for_each(|_| self.read(found)),
            _ => found.push(rest.to_owned()),
        }
    }
}
