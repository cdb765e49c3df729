//! The proxy under test, as a child process.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

/// Longest wait for the port of the proxy.
const START: Duration = Duration::from_secs(20);
/// Clock ticks per second in `/proc`, on all machines that Linux runs on today.
const TICKS: u64 = 100;

/// A running proxy; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Proxy {
    child: Child,
    pub(crate) port: u16,
    folder: PathBuf,
}

/// What the proxy has used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// User and system time.
    pub(crate) cpu: Duration,
    /// Resident memory, KiB: now, and at most so far.
    pub(crate) resident_kib: u64,
    pub(crate) peak_kib: u64,
}

impl Usage {
    /// Returns what was used since, and the memory above what was resident then.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            resident_kib: before.resident_kib,
            peak_kib: self.peak_kib,
        }
    }
}

impl Proxy {
    /// Starts a command with `{port}`, `{engine}` (ports) and `{dir}` (a new folder) filled in,
    /// also in the files named `*.conf` beside this program's `Cargo.toml`.
    pub(crate) fn start(command: &str, engine: u16) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = std::env::temp_dir().join(format!("stream-bench-{port}"));
        fs::create_dir_all(&folder)?;
        let fill = |text: &str| {
            text.replace("{port}", &port.to_string())
                .replace("{engine}", &engine.to_string())
                .replace("{dir}", &folder.to_string_lossy())
        };
        for file in fs::read_dir(env!("CARGO_MANIFEST_DIR"))? {
            let path = file?.path();
            if let (true, Some(name)) = (
                path.extension().is_some_and(|it| it == "conf"),
                path.file_name(),
            ) {
                fs::write(folder.join(name), fill(&fs::read_to_string(&path)?))?;
            }
        }
        let command = fill(command);
        let mut words = command.split_whitespace();
        let program = words.next().context("the command is empty")?;
        let log = fs::File::create(folder.join("log"))?;
        let child = Command::new(program)
            .args(words)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{program} does not start"))?;
        let proxy = Self {
            child,
            port,
            folder,
        };
        proxy.wait_until_ready()?;
        Ok(proxy)
    }

    /// Waits for the port, and until the proxy has found its engine.
    fn wait_until_ready(&self) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let log = self.folder.join("log");
            ensure!(started.elapsed() < START, "no port: see {}", log.display());
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_secs(1));
        Ok(())
    }

    /// Returns what the proxy and its children have used.
    pub(crate) fn usage(&mut self) -> Result<Usage> {
        let mut total = Usage {
            cpu: Duration::ZERO,
            resident_kib: 0,
            peak_kib: 0,
        };
        for id in family(self.child.id())? {
            let folder = PathBuf::from(format!("/proc/{id}"));
            let status = fs::read_to_string(folder.join("status"))?;
            total.resident_kib += field(&status, "VmRSS:")?;
            total.peak_kib += field(&status, "VmHWM:")?;
            total.cpu += cpu(&folder)?;
        }
        Ok(total)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // SIGTERM by its shell name: the standard library can only kill, which leaves children.
        let id = self.child.id().to_string();
        drop(Command::new("kill").args(["-TERM", &id]).status());
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if started.elapsed() > Duration::from_secs(3) {
                drop(self.child.kill());
            }
            thread::sleep(Duration::from_millis(20));
        }
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// Returns a process and its children.
fn family(parent: u32) -> Result<Vec<u32>> {
    let mut ids = vec![parent];
    let tasks = format!("/proc/{parent}/task");
    for task in fs::read_dir(tasks)? {
        let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        ids.extend(
            children
                .split_whitespace()
                .filter_map(|id| id.parse::<u32>().ok()),
        );
    }
    Ok(ids)
}

/// Returns a field of `/proc/ID/status`.
fn field(status: &str, name: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("no {name}"))
}

/// Returns the user and system time of a process.
fn cpu(folder: &Path) -> Result<Duration> {
    let stat = fs::read_to_string(folder.join("stat"))?;
    // The name of the program, in brackets, may contain spaces.
    let (_, rest) = stat.rsplit_once(')').context("no fields")?;
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    Ok(Duration::from_millis(ticks * 1000 / TICKS))
}
