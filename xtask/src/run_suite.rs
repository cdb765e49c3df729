//! `cargo xtask run-suite`: runs one test program for `cargo test`, as the runner that `./test`
//! configures.
//!
//! It forwards the program's output, in whole lines. If a test runs for too long, it prints its
//! name and kills the program with all its descendants, so that a hang fails the run and does not
//! block it. It appends the durations of the program and of each of its tests to a file.
#![allow(
    clippy::disallowed_methods,
    reason = "the limits of a test run are real time"
)]

mod descendants;
mod output;
mod slow_tests;
mod test_durations;

use std::{
    env,
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use output::{NextLine, Output};
use slow_tests::SlowTests;
use test_durations::TestDurations;

/// Interval between two checks of the limits.
const LOOK: Duration = Duration::from_millis(200);
/// Several times what the longest suite takes on two cores. A hanging test meets its own limit.
const SUITE_LIMIT: Duration = Duration::from_secs(3600);
/// Time to wait for the output pipes after the program's end: a process that outlives it may hold
/// them.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// One test program and its limits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suite {
    program: Vec<String>,
    durations: Option<PathBuf>,
    test_limit: Duration,
    suite_limit: Duration,
}

impl Suite {
    /// `[--durations FILE] [--test-limit SECONDS] [--suite-limit SECONDS] PROGRAM [ARGUMENT]...`
    pub(crate) fn from_args(mut args: &[&str]) -> Option<Self> {
        let mut suite = Self {
            program: Vec::new(),
            durations: None,
            test_limit: Duration::from_secs(300),
            suite_limit: SUITE_LIMIT,
        };
        while let [flag, value, rest @ ..] = args
            && flag.starts_with("--")
        {
            let seconds = || value.parse().map(Duration::from_secs).ok();
            match *flag {
                "--durations" => suite.durations = Some(value.into()),
                "--test-limit" => suite.test_limit = seconds()?,
                "--suite-limit" => suite.suite_limit = seconds()?,
                _ => return None,
            }
            args = rest;
        }
        suite.program = args.iter().map(|arg| (*arg).to_owned()).collect();
        suite
            .program
            .first()
            .is_some_and(|program| !program.starts_with("--"))
            .then_some(suite)
    }

    /// Runs the program and returns its exit code.
    pub(crate) fn run(self) -> ExitCode {
        let started = Instant::now();
        let name = self.name();
        let mut command = Command::new(&self.program[0]);
        command
            .args(&self.program[1..])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                eprintln!("run-suite: {} cannot be started: {error}", self.program[0]);
                return ExitCode::FAILURE;
            }
        };
        let mut tests = TestDurations::default();
        let result = self.watch(&mut child, started, &mut tests);
        self.note_durations(&name, started.elapsed(), &tests);
        match result {
            Ok(status) if status.code().is_none() => {
                eprintln!("run-suite: {name} ended with {status}");
                ExitCode::FAILURE
            }
            Ok(status) => status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .map_or(ExitCode::FAILURE, ExitCode::from),
            Err(overrun) => {
                descendants::kill(&mut child);
                eprintln!("\nrun-suite: {name} was killed: {overrun}");
                ExitCode::FAILURE
            }
        }
    }

    /// Forwards output until the program ends; the error names what ran for too long.
    fn watch(
        &self,
        child: &mut Child,
        started: Instant,
        tests: &mut TestDurations,
    ) -> Result<ExitStatus, String> {
        let output = Output::of(child);
        let mut slow = SlowTests::default();
        let mut ended: Option<(ExitStatus, Instant)> = None;
        loop {
            match output.next(LOOK) {
                NextLine::Line(line) => {
                    let (text, now) = (line.text(), Instant::now());
                    slow.read(&text, now);
                    tests.read(&text, now);
                    line.pass_on();
                }
                NextLine::Nothing => {}
                NextLine::End => std::thread::sleep(Duration::from_millis(1)),
            }
            if ended.is_none() {
                let status = child
                    .try_wait()
                    .map_err(|error| format!("it cannot be waited for: {error}"))?;
                ended = status.map(|status| (status, Instant::now()));
            }
            match ended {
                Some((status, at)) if output.is_at_end() || at.elapsed() > LAST_OUTPUT => {
                    return Ok(status);
                }
                Some(_) => {}
                None => self.check_limits(&slow, started)?,
            }
        }
    }

    fn check_limits(&self, slow: &SlowTests, started: Instant) -> Result<(), String> {
        let now = Instant::now();
        if let Some(test) = slow.longer_than(self.test_limit, now) {
            return Err(format!(
                "the test {test} ran for longer than {} s",
                self.test_limit.as_secs()
            ));
        }
        if now.duration_since(started) > self.suite_limit {
            let limit = self.suite_limit.as_secs();
            return Err(format!(
                "it ran for longer than {limit} s; tests that had run for over a minute: {slow}"
            ));
        }
        Ok(())
    }

    /// Returns package and program, as in `fleet lifecycle`. `cargo test` runs a program in its
    /// package's folder.
    fn name(&self) -> String {
        let folder = env::current_dir().unwrap_or_default();
        let package = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let program = Path::new(&self.program[0])
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let program = program
            .rsplit_once('-')
            .map_or(&*program, |(program, _fingerprint)| program);
        format!("{package} {program}")
    }

    /// Records one line for the program, and one for each of its tests with the test's name in a
    /// third column.
    ///
    /// Only for test programs: `rustdoc` starts one program per example, whose duration is not
    /// useful.
    fn note_durations(&self, name: &str, duration: Duration, tests: &TestDurations) {
        let in_deps = Path::new(&self.program[0])
            .parent()
            .is_some_and(|folder| folder.ends_with("deps"));
        let Some(file) = self.durations.as_ref().filter(|_| in_deps) else {
            return;
        };
        let mut lines = format!("{:.1}\t{name}\n", duration.as_secs_f64());
        let threads = test_durations::threads(&self.program[1..]);
        for (test, duration) in tests.by_name(threads) {
            lines += &format!("{:.1}\t{name}\t{test}\n", duration.as_secs_f64());
        }
        let opened = OpenOptions::new().append(true).create(true).open(file);
        if let Err(error) = opened.and_then(|mut opened| opened.write_all(lines.as_bytes())) {
            eprintln!("run-suite: {} cannot be written: {error}", file.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_end_at_the_program_and_later_arguments_belong_to_it() {
        let suite = Suite::from_args(&[
            "--test-limit",
            "7",
            "--durations",
            "d",
            "deps/lifecycle-12ab",
            "--exact",
            "a",
        ]);
        let suite = suite.expect("known flags");
        assert_eq!(
            (suite.test_limit, suite.suite_limit.as_secs()),
            (Duration::from_secs(7), 3600)
        );
        assert_eq!(suite.durations, Some(PathBuf::from("d")));
        assert_eq!(suite.program, ["deps/lifecycle-12ab", "--exact", "a"]);
        assert!(suite.name().ends_with(" lifecycle"), "{}", suite.name());
    }

    #[test]
    fn a_call_without_a_program_or_with_an_unknown_flag_is_refused() {
        for args in [
            &[][..],
            &["--test-limit", "7"],
            &["--test-limit", "soon", "p"],
            &["--other", "7", "p"],
        ] {
            assert_eq!(Suite::from_args(args), None, "{args:?}");
        }
    }
}
