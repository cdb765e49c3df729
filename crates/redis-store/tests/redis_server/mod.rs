//! A real Redis server, as a child process on a free port, and a raw protocol client.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use net::Clock;
use tempfile::TempDir;
use test_programs::ReservedPort;

/// An upper bound; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(120);
const FAILOVER_PATIENCE: Duration = Duration::from_secs(200);

/// Killed, as by `kill -9`, on drop. It writes nothing to disk, so a restarted server is empty.
pub struct RedisServer {
    child: Child,
    flags: Vec<String>,
    port: ReservedPort,
    folder: TempDir,
}

impl RedisServer {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let port = ReservedPort::new();
        let child = spawn(folder.path(), &flags, port.number());
        let mut server = Self {
            child,
            flags,
            port,
            folder,
        };
        server.until_it_serves(1);
        server
    }

    /// Starts a replica of another server, and waits until it has the same data.
    pub fn replica_of(primary: &Self) -> Self {
        let port = primary.port.number().to_string();
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &port]);
        until("the replica to follow its primary", || {
            let state = replica.ask(&["INFO", "replication"]).remove(0);
            state.contains("master_link_status:up")
        });
        replica
    }

    /// Starts on the same port again, after [`RedisServer::kill`].
    pub fn start_again(&mut self) {
        let before = self.starts();
        self.child = spawn(self.folder.path(), &self.flags, self.port.number());
        self.until_it_serves(before + 1);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the process: connections stay open without answers.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    pub fn resume(&self) {
        self.signal("CONT");
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.port.address())
    }

    /// The answer to one command, all its strings in order; null is `(nil)`.
    pub fn ask(&self, words: &[&str]) -> Vec<String> {
        RawRedis::connect(self.port.number()).ask(words)
    }

    /// How many times it received a command (in lower case) since its start.
    pub fn calls(&self, command: &str) -> u64 {
        let name = format!("cmdstat_{command}:calls=");
        let statistics = self.ask(&["INFO", "commandstats"]).remove(0);
        let calls = statistics
            .lines()
            .find_map(|line| line.strip_prefix(&name)?.split(',').next()?.parse().ok());
        calls.unwrap_or(0)
    }

    pub fn client(&self) -> RawRedis {
        RawRedis::connect(self.port.number())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// How many times it has begun to serve, by its log, which cannot be another server's; a
    /// connection could be.
    fn starts(&self) -> usize {
        self.log().matches("Ready to accept connections").count()
    }

    fn until_it_serves(&mut self, starts: usize) {
        let start = Clock::system().now();
        while self.starts() < starts {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "redis-server ended with {ended:?}: {}",
                self.log()
            );
            assert!(
                Clock::system().now().since(start) < PATIENCE,
                "redis-server is not ready: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([format!("-{name}"), self.child.id().to_string()])
            .status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{name}");
    }
}

/// A sentinel that watches one primary by the name `main`, and agrees with itself on a failover.
pub struct RedisSentinel {
    child: Child,
    port: ReservedPort,
    folder: TempDir,
}

impl RedisSentinel {
    /// Starts, and waits until it knows the primary's replica.
    pub fn watch(primary: &RedisServer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = ReservedPort::new();
        let file = folder.path().join("sentinel.conf");
        let rules = format!(
            "bind 127.0.0.1\nport {}\ndir {dir}\nlogfile {dir}/log\n\
             sentinel monitor main 127.0.0.1 {} 1\nsentinel down-after-milliseconds main 3000\n\
             sentinel failover-timeout main 4000\n",
            port.number(),
            primary.port.number(),
            dir = folder.path().display(),
        );
        fs::write(&file, rules).unwrap();
        let child = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let sentinel = Self {
            child,
            port,
            folder,
        };
        let log = sentinel.folder.path().join("log");
        until("the sentinel to know the replica", || {
            let log = fs::read_to_string(&log).unwrap_or_default();
            log.contains("+slave slave")
        });
        sentinel
    }

    /// Waits until it has made another server the primary. It closes that server's connections then.
    ///
    /// A sentinel whose machine stands still for two seconds does nothing for half a minute.
    pub fn until_it_switches(&self) {
        let (start, log) = (Clock::system().now(), self.folder.path().join("log"));
        while !fs::read_to_string(&log)
            .unwrap_or_default()
            .contains("+switch-master main")
        {
            let waited = Clock::system().now().since(start);
            assert!(waited < FAILOVER_PATIENCE, "no failover within {waited:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The URL of its primary.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/main", self.port.address())
    }
}

impl Drop for RedisSentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Clock::system().now();
    while !is_so() {
        let waited = Clock::system().now().since(start);
        assert!(waited < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
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
        .args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ])
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

    /// Reads the next line.
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
