//! The program under test, as a child process.

use std::{
    fs::File,
    io::Read,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use serde_json::Value;
use tempfile::NamedTempFile;
use test_programs::{ReservedPort, limit};

use super::known_secrets;

/// Longest time until the ready line.
const START: Duration = Duration::from_secs(120);
/// Longest time until a program exits by itself; a drain may take its 30 s.
const END: Duration = Duration::from_secs(180);

/// A running `warmroute`. Dropping it kills the process and waits for it.
pub struct Program {
    child: Child,
    /// The ready line.
    pub ready: Value,
    stderr: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
    /// The configuration file, which the program watches.
    file: Option<NamedTempFile>,
    /// The port, which stays reserved for a restart after [`Program::kill`].
    port: Option<ReservedPort>,
}

/// A `warmroute` that need not become ready. Dropping it kills the process (kill -9).
#[cfg(feature = "nats")]
pub struct UnreadyProgram {
    child: Child,
    _file: NamedTempFile,
}

/// A `warmroute` that has exited by itself.
#[derive(Debug)]
pub struct FinishedProgram {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmroute"));
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (key, _) in std::env::vars() {
        if key.starts_with("WARMROUTE_") {
            command.env_remove(key);
        }
    }
    if let Ok(level) = std::env::var("WARMROUTE_TEST_LOG") {
        command.env("WARMROUTE_LOGGING__LEVEL", level);
    }
    known_secrets::learn_from_args(args);
    command
}

impl Program {
    /// Starts the program and waits for its ready line.
    pub fn start(args: &[&str]) -> Self {
        Self::start_with_env(args, &[])
    }

    /// The same with environment variables.
    pub fn start_with_env(args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = command(args)
            .envs(env.iter().copied())
            .arg("--print-ready")
            .spawn()
            .expect("the program starts");
        let stderr = child.stderr.take().expect("stderr is piped");
        Self::once_ready(child, stderr, args)
    }

    /// The same with a terminal as its stderr.
    pub fn start_on_terminal(args: &[&str]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        unlockpt(&ours).expect("it can be unlocked");
        let name = ptsname(&ours, Vec::new()).expect("its other side has a name");
        let theirs = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().expect("the name is text"))
            .expect("its other side can be opened");
        let child = command(args)
            .arg("--print-ready")
            .stderr(theirs)
            .spawn()
            .expect("the program starts");
        Self::once_ready(child, File::from(ours), args)
    }

    fn once_ready(mut child: Child, stderr: impl Read + Send + 'static, args: &[&str]) -> Self {
        let written = Arc::new(Mutex::new(String::new()));
        let reader = collect(stderr, Arc::clone(&written));
        let line = limit::first_line(child.stdout.take().expect("stdout is piped"), START);
        let Some(ready) = line.and_then(|line| serde_json::from_str(&line).ok()) else {
            let _ = child.kill();
            let _ = child.wait();
            let _ = reader.join();
            panic!(
                "no ready line from {args:?} within {START:?}, stderr: {}",
                written.lock().unwrap()
            );
        };
        Self {
            child,
            ready,
            stderr: written,
            reader: Some(reader),
            file: None,
            port: None,
        }
    }

    /// A simulated engine on free ports; later flags override. Its port stays reserved while this
    /// value lives, also after [`Program::kill`], so another engine may be started on it.
    pub fn engine(flags: &[&str]) -> Self {
        let mut args = vec!["engine"];
        for (flag, free) in [
            ("--kv-events", "tcp://127.0.0.1:0"),
            ("--replay", "tcp://127.0.0.1:0"),
        ] {
            if !flags.contains(&flag) {
                args.extend([flag, free]);
            }
        }
        args.extend(flags);
        if flags.contains(&"--port") {
            return Self::start(&args);
        }
        let port = ReservedPort::new();
        let number = port.number().to_string();
        args.extend(["--port", &number]);
        let mut engine = Self::start(&args);
        engine.port = Some(port);
        engine
    }

    /// A router on free ports in front of `workers`; later flags override.
    pub fn serve(workers: &[String], flags: &[&str]) -> Self {
        Self::serve_with_env(workers, flags, &[])
    }

    /// The same with environment variables.
    pub fn serve_with_env(workers: &[String], flags: &[&str], env: &[(&str, &str)]) -> Self {
        let mut args = vec!["serve", "--log-format", "json"];
        for flag in ["--listen", "--admin-listen"] {
            if !flags.contains(&flag) {
                args.extend([flag, "127.0.0.1:0"]);
            }
        }
        for worker in workers {
            args.extend(["-w", worker.as_str()]);
        }
        args.extend(flags);
        Self::start_with_env(&args, env)
    }

    /// The same with a configuration file of this text.
    pub fn serve_with(yaml: &str, workers: &[String], flags: &[&str]) -> Self {
        let file = NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), yaml).expect("it can be written");
        known_secrets::learn_from_yaml(yaml);
        let path = file.path().to_str().expect("its name is text");
        let program = Self::serve(workers, &[&["-c", path], flags].concat());
        program.with_file(file)
    }

    /// The same; the file lives as long as the program.
    pub fn with_file(mut self, file: NamedTempFile) -> Self {
        self.file = Some(file);
        self
    }

    /// Starts a router with a configuration file of this text, and does not wait for it.
    #[cfg(feature = "nats")]
    pub fn serve_unready(yaml: &str) -> UnreadyProgram {
        let file = NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), yaml).expect("it can be written");
        known_secrets::learn_from_yaml(yaml);
        let path = file.path().to_str().expect("its name is text");
        let free = "127.0.0.1:0";
        let child = command(&[
            "serve",
            "--listen",
            free,
            "--admin-listen",
            free,
            "-c",
            path,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
        UnreadyProgram { child, _file: file }
    }

    /// Overwrites its configuration file.
    pub fn configure(&self, yaml: &str) {
        let file = self
            .file
            .as_ref()
            .expect("it was started with a configuration");
        std::fs::write(file.path(), yaml).expect("it can be written");
        known_secrets::learn_from_yaml(yaml);
    }

    /// Runs the program to its end.
    pub fn finish(args: &[&str]) -> FinishedProgram {
        Self::finish_with_env(args, &[])
    }

    /// The same with environment variables.
    pub fn finish_with_env(args: &[&str], env: &[(&str, &str)]) -> FinishedProgram {
        let output = limit::output(command(args).envs(env.iter().copied()), END);
        for written in [&output.stdout, &output.stderr] {
            known_secrets::assert_none_in("the output of a program", written);
        }
        FinishedProgram {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs it to its end with this stdout, of which nothing is read.
    pub fn finish_into(args: &[&str], stdout: impl Into<Stdio>) -> FinishedProgram {
        let mut child = command(args)
            .stdout(stdout)
            .spawn()
            .expect("the program starts");
        let mut pipe = child.stderr.take().expect("stderr is piped");
        let status = limit::wait(&mut child, END, &format!("{args:?}"));
        let mut stderr = String::new();
        pipe.read_to_string(&mut stderr).expect("stderr is text");
        FinishedProgram {
            code: status.code(),
            stdout: String::new(),
            stderr,
        }
    }

    /// `host:port` of the data listener.
    pub fn data(&self) -> String {
        self.ready["data"]
            .as_str()
            .expect("the ready line names the data address")
            .to_owned()
    }

    /// `host:port` of the admin listener.
    pub fn admin(&self) -> String {
        self.ready["admin"]
            .as_str()
            .expect("the ready line names the admin address")
            .to_owned()
    }

    /// The URL of this engine as a worker.
    pub fn url(&self) -> String {
        format!("http://{}", self.data())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal by name (`TERM`, `INT`, `STOP`, `CONT`).
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{name}");
    }

    /// Waits until the program has exited by itself.
    pub fn wait(mut self) -> FinishedProgram {
        let code = limit::wait(
            &mut self.child,
            END,
            &format!("the program of {}", self.ready),
        )
        .code();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        FinishedProgram {
            code,
            stdout: String::new(),
            stderr: self.stderr(),
        }
    }
}

#[cfg(feature = "nats")]
impl Drop for UnreadyProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- stderr of {} ---\n{}", self.ready, self.stderr());
        } else {
            known_secrets::assert_none_in("the log of a program", self.stderr().as_bytes());
        }
    }
}

fn collect(mut stderr: impl Read + Send + 'static, into: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut chunk = [0u8; 4096];
        while let Ok(n) = stderr.read(&mut chunk) {
            if n == 0 {
                break;
            }
            into.lock()
                .unwrap()
                .push_str(&String::from_utf8_lossy(&chunk[..n]));
        }
    })
}
