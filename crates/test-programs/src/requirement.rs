//! Requirements of tests on the machine, outside the repository.

use std::{
    ffi::OsString,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// Begins the line on stderr that names a skipped test: `test skipped: NAME: reason`. `cargo xtask
/// contract-status` reads it from the test log.
pub const SKIPPED: &str = "test skipped: ";

/// A program or library that some tests need, see [`crate::require!`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// `redis-server` in the PATH.
    RedisServer,
    /// `nats-server` in the PATH.
    NatsServer,
    /// `prometheus` and `promtool` in the PATH.
    Prometheus,
    /// A Python with `zmq`, the binding of libzmq.
    Libzmq,
    /// A Python.
    Python,
    /// A Python with the SDKs of OpenAI and Anthropic.
    PythonSdks,
    /// Node with the same SDKs.
    NodeSdks,
    /// `curl` in the PATH.
    Curl,
    /// `systemd-analyze` in the PATH.
    SystemdAnalyze,
    /// `/proc/self/status`, which Linux has.
    ProcStatus,
}

impl Requirement {
    /// Whether it is missing; if so, prints the test as skipped on stderr.
    ///
    /// # Panics
    ///
    /// If it is missing and the environment has `CI=true`.
    pub fn is_missing(self) -> bool {
        let Err(missing) = self.check() else {
            return false;
        };
        let reason = format!("{missing}; {}", self.remedy());
        if is_strict(std::env::var_os("CI")) {
            panic!("{reason} (CI is set: a missing requirement is a failure)");
        }
        // Not through eprintln!, which the test harness captures. A single write, so that no other
        // output interrupts the line.
        let test = std::thread::current()
            .name()
            .unwrap_or("unknown")
            .to_owned();
        let _ = std::io::stderr().write_all(format!("{SKIPPED}{test}: {reason}\n").as_bytes());
        true
    }

    fn check(self) -> Result<(), String> {
        match self {
            Self::RedisServer => runs("redis-server", &["--version"]),
            Self::NatsServer => runs("nats-server", &["--version"]),
            Self::Prometheus => {
                runs("prometheus", &["--version"]).and_then(|()| runs("promtool", &["--version"]))
            }
            Self::Libzmq => runs(python(), &["-c", "import zmq"]),
            Self::Python => runs(python(), &["--version"]),
            Self::PythonSdks => runs(python(), &["-c", "import anthropic, openai, websockets"]),
            Self::NodeSdks => {
                let folder = node_folder()
                    .ok_or("WARMROUTE_TEST_NODE does not name a folder with the SDKs for Node")?;
                let load = "require('openai'); require('@anthropic-ai/sdk'); require('zod')";
                is_success(
                    Command::new("node").current_dir(folder).args(["-e", load]),
                    "node, with the SDKs",
                )
            }
            Self::Curl => runs("curl", &["--version"]),
            Self::SystemdAnalyze => runs("systemd-analyze", &["--version"]),
            Self::ProcStatus if Path::new("/proc/self/status").exists() => Ok(()),
            Self::ProcStatus => Err("there is no /proc/self/status".to_owned()),
        }
    }

    /// How to install it.
    fn remedy(self) -> &'static str {
        match self {
            Self::RedisServer => {
                "on Debian: apt-get install redis-server (./test does that as root)"
            }
            Self::NatsServer => "on Debian: apt-get install nats-server (./test does that as root)",
            Self::Prometheus => {
                "./test fetches it on Debian; else install prometheus with promtool"
            }
            Self::Libzmq | Self::PythonSdks => {
                "./test installs tests/sdk/requirements.txt and sets WARMROUTE_TEST_PYTHON to that Python"
            }
            Self::Python => "install python3, or set WARMROUTE_TEST_PYTHON to a Python",
            Self::NodeSdks => {
                "install node and npm: ./test installs tests/sdk/package.json and sets WARMROUTE_TEST_NODE"
            }
            Self::Curl => "install curl",
            Self::SystemdAnalyze => "on Debian: apt-get install systemd (./test does that as root)",
            Self::ProcStatus => "run this test on Linux",
        }
    }
}

/// The Python that tests use: `WARMROUTE_TEST_PYTHON`, or `python3` in the PATH.
pub fn python() -> OsString {
    std::env::var_os("WARMROUTE_TEST_PYTHON").unwrap_or_else(|| "python3".into())
}

/// The folder with the SDKs for Node, if `WARMROUTE_TEST_NODE` names one.
pub fn node_folder() -> Option<OsString> {
    std::env::var_os("WARMROUTE_TEST_NODE")
}

fn runs(program: impl Into<OsString>, args: &[&str]) -> Result<(), String> {
    let program = program.into();
    let what = format!("`{} {}`", program.display(), args.join(" "));
    is_success(Command::new(program).args(args), &what)
}

fn is_success(command: &mut Command, what: &str) -> Result<(), String> {
    match command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
    {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} fails with {status}")),
        Err(error) => Err(format!("{what} cannot be run: {error}")),
    }
}

fn is_strict(ci: Option<OsString>) -> bool {
    ci.is_some_and(|value| !matches!(value.to_str(), Some("" | "0" | "false")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ci_is_strict_unless_it_is_empty_or_false() {
        let strict = |value: &str| is_strict(Some(value.into()));
        assert_eq!(
            [
                strict("true"),
                strict("1"),
                strict("false"),
                strict("0"),
                strict("")
            ],
            [true, true, false, false, false]
        );
        assert!(!is_strict(None));
    }

    #[test]
    fn a_program_that_is_missing_or_fails_is_named() {
        let missing = runs("no-such-program", &["--version"]).expect_err("the program is missing");
        assert!(
            missing.starts_with("`no-such-program --version` cannot be run: "),
            "{missing}"
        );
        let fails = runs("sh", &["-c", "exit 3"]).expect_err("it fails");
        assert!(fails.starts_with("`sh -c exit 3` fails with "), "{fails}");
        assert_eq!(runs("sh", &["-c", "exit 0"]), Ok(()));
    }
}
