//! The router under attack.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStderr, Command, Stdio},
};

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::harness::{RawClient, eventually};

/// Memory budget of the router: generous for its work here, far below what the attack requests.
pub(crate) const MEMORY_BUDGET: u64 = 768 << 20;
/// Seconds between two panics inside the router.
pub(crate) const PANIC_INTERVAL_S: u64 = 10;

/// A router whose log goes to a full pipe, with a panic injected every [`PANIC_INTERVAL_S`]
/// seconds. Dropping it kills the process.
pub(crate) struct AttackedRouter {
    child: Child,
    ready: Value,
    /// The pipe's reading end, open and never read.
    _stderr: ChildStderr,
    _config: NamedTempFile,
}

impl AttackedRouter {
    pub(crate) fn start(workers: &[String]) -> Self {
        let mut config = NamedTempFile::new().expect("a temporary file");
        write!(
            config,
            "server: {{memory_budget: {}MiB}}\n\
             queue: {{wait: 20s}}\n\
             logging: {{level: debug, requests: true, format: json}}\n",
            MEMORY_BUDGET >> 20
        )
        .expect("it can be written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmroute"));
        command
            .args(["serve", "--print-ready", "--log-format", "json"])
            .args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
            .args(["-c", config.path().to_str().expect("its name is text")])
            .args(workers.iter().flat_map(|worker| ["-w", worker]))
            .env(
                "WARMROUTE_TEST_PANICS",
                format!("tasks:every={PANIC_INTERVAL_S}s"),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let stderr = child.stderr.take().expect("stderr is piped");
        let mut line = String::new();
        let _ = BufReader::new(child.stdout.take().expect("stdout is piped")).read_line(&mut line);
        let ready =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("no ready line but {line:?}"));
        Self {
            child,
            ready,
            _stderr: stderr,
            _config: config,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn data(&self) -> &str {
        self.ready["data"]
            .as_str()
            .expect("the ready line names the data address")
    }

    pub(crate) fn admin(&self) -> &str {
        self.ready["admin"]
            .as_str()
            .expect("the ready line names the admin address")
    }

    pub(crate) fn wait_for_models(&self, models: &[&str]) {
        eventually("every model to be served", || {
            let list = RawClient::get(self.data(), "/v1/models").text();
            models
                .iter()
                .all(|model| list.contains(&format!("\"{model}\"")))
                .then_some(())
        });
    }

    /// The sum of a metric over its series; 0 if it has none.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = RawClient::get(self.admin(), "/metrics").text();
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            (series.split('{').next() == Some(name))
                .then(|| value.parse::<f64>().expect("a sample is a number"))
        };
        page.lines().filter_map(value).sum()
    }

    /// CPU time used so far, in seconds.
    pub(crate) fn cpu_s(&self) -> f64 {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the router runs");
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .expect("a name in brackets")
            .1
            .split_whitespace()
            .collect();
        let ticks: u64 = fields[11..13]
            .iter()
            .map(|field| field.parse::<u64>().expect("a number of ticks"))
            .sum();
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }

    /// Resident memory, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .expect("the router runs");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .expect("the router has memory");
        line.trim()
            .trim_end_matches(" kB")
            .parse::<u64>()
            .expect("a number of KiB")
            * 1024
    }
}

impl Drop for AttackedRouter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
