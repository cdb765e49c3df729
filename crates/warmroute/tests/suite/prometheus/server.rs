//! A real Prometheus as a child process on a free port, and queries to it.

use std::{
    fs,
    io::Write,
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use test_programs::{ReservedPort, limit};

use crate::harness::{RawClient, Stopwatch};

/// Longer than anything here takes; only a failing test waits this long.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Interval of scrapes and of rule evaluations.
const INTERVAL: &str = "1s";

/// Waits until `check` returns a value; fails with the name of the expected event.
pub(crate) fn patiently<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let waiting = Stopwatch::start();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(waiting.elapsed() < TIMEOUT, "waited {TIMEOUT:?} for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// One series of a result.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    labels: Value,
    pub(crate) value: f64,
}

impl Series {
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels[name].as_str().unwrap_or_default()
    }
}

/// Scrapes one router. Dropping it kills the process and deletes its data.
pub(crate) struct Prometheus {
    child: Child,
    address: String,
    folder: TempDir,
    _port: ReservedPort,
}

impl Prometheus {
    /// Scrapes `target` and evaluates the rules of this text.
    pub(crate) fn scraping(target: &str, rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        fs::write(file("rules.yml"), rules).unwrap();
        let config = format!(
            "global: {{scrape_interval: {INTERVAL}, scrape_timeout: {INTERVAL}, evaluation_interval: {INTERVAL}}}\n\
             rule_files: [rules.yml]\n\
             scrape_configs: [{{job_name: warmroute, static_configs: [{{targets: [\"{target}\"]}}]}}]\n"
        );
        fs::write(file("prometheus.yml"), config).unwrap();
        let port = ReservedPort::new();
        let address = port.address();
        let mut child = spawn(&folder, &address);
        if is_ready(&mut child, &address) {
            return Self {
                child,
                address,
                folder,
                _port: port,
            };
        }
        panic!(
            "prometheus never became ready: {}",
            fs::read_to_string(file("log")).unwrap_or_default()
        );
    }

    /// The result of a query at the current time.
    pub(crate) fn query(&self, query: &str) -> Vec<Series> {
        self.run_query(&format!("query={}", encoded(query)))
    }

    /// The result at the time of an earlier result.
    pub(crate) fn query_at(&self, query: &str, time: f64) -> Vec<Series> {
        self.run_query(&format!("query={}&time={time:.3}", encoded(query)))
    }

    /// The only number in a query's result; `None` if the result is empty.
    pub(crate) fn number(&self, query: &str) -> Option<f64> {
        let found = self.query(query);
        assert!(found.len() < 2, "{query} gives one series: {found:?}");
        found.first().map(|series| series.value)
    }

    /// The clock of Prometheus.
    pub(crate) fn time(&self) -> f64 {
        let answer = RawClient::get(&self.address, "/api/v1/query?query=time()").json();
        answer["data"]["result"][1]
            .as_str()
            .and_then(|time| time.parse().ok())
            .expect("a time")
    }

    /// Waits until it has scraped the target this often, with the last scrape successful.
    pub(crate) fn scraped(&self, times: u32) {
        patiently("scrapes", || {
            self.number("sum_over_time(up[5m])")
                .filter(|up| *up >= f64::from(times))
        });
    }

    /// The firing alerts: their names and backends.
    pub(crate) fn firing(&self) -> Vec<(String, String)> {
        let alerts = RawClient::get(&self.address, "/api/v1/alerts").json();
        let alerts = alerts["data"]["alerts"]
            .as_array()
            .expect("a list of alerts")
            .clone();
        let label = |alert: &Value, name: &str| {
            alert["labels"][name]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing
            .map(|alert| (label(alert, "alertname"), label(alert, "backend")))
            .collect()
    }

    /// The output of `promtool query instant`.
    pub(crate) fn promtool(&self, query: &str) -> String {
        let url = format!("http://{}", self.address);
        let output = limit::output(
            Command::new("promtool").args(["query", "instant", &url, query]),
            TIMEOUT,
        );
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn run_query(&self, parameters: &str) -> Vec<Series> {
        let answer = RawClient::get(&self.address, &format!("/api/v1/query?{parameters}")).json();
        assert_eq!(answer["status"], "success", "{parameters}: {answer}");
        let result = answer["data"]["result"]
            .as_array()
            .expect("a vector")
            .clone();
        let value = |one: &Value| {
            one["value"][1]
                .as_str()
                .and_then(|value| value.parse().ok())
                .expect("a number")
        };
        result
            .iter()
            .map(|one| Series {
                labels: one["metric"].clone(),
                value: value(one),
            })
            .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            eprintln!("--- log of prometheus ---\n{log}");
        }
    }
}

fn spawn(folder: &TempDir, address: &str) -> Child {
    let log = fs::File::create(folder.path().join("log")).unwrap();
    Command::new("prometheus")
        .arg(format!(
            "--config.file={}",
            folder.path().join("prometheus.yml").display()
        ))
        .arg(format!(
            "--storage.tsdb.path={}",
            folder.path().join("data").display()
        ))
        .arg(format!("--web.listen-address={address}"))
        .arg("--log.level=warn")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// False if the process has ended.
fn is_ready(child: &mut Child, address: &str) -> bool {
    let waiting = Stopwatch::start();
    while waiting.elapsed() < TIMEOUT {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        let answers =
            TcpStream::connect(address).is_ok_and(|mut stream| stream.write_all(b"").is_ok());
        if answers && RawClient::get(address, "/-/ready").status == 200 {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

/// A query, encoded for a URL.
fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}
