//! Time limits for programs that a test starts. A program that hangs is killed, and the test fails
//! and names it.
#![allow(
    clippy::disallowed_methods,
    reason = "a test's time limit is real time"
)]

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{self, Receiver},
    time::{Duration, Instant},
};

/// Runs a program to its end and collects its output; its stdin is that of the command.
///
/// # Panics
///
/// If it cannot be started, or runs longer than `limit`; then it is killed.
pub fn output(command: &mut Command, limit: Duration) -> Output {
    let started = Instant::now();
    let what = format!("{command:?}");
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{what} cannot be started: {error}"));
    let stdout = read_to_end(child.stdout.take());
    let stderr = read_to_end(child.stderr.take());
    let status = wait(&mut child, limit, &what);
    // A child process that outlives it may still hold the pipes.
    let rest = |pipe: &Receiver<Vec<u8>>| {
        let left = limit
            .saturating_sub(started.elapsed())
            .max(Duration::from_secs(1));
        pipe.recv_timeout(left)
            .unwrap_or_else(|_| panic!("{what} ended, and a process it started holds its output"))
    };
    Output {
        status,
        stdout: rest(&stdout),
        stderr: rest(&stderr),
    }
}

/// Waits for the end of a program; `what` names it.
///
/// # Panics
///
/// If it runs longer than `limit` from now; then it is killed.
pub fn wait(child: &mut Child, limit: Duration, what: &str) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status;
        }
        if started.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{what} did not end within {limit:?} and was killed");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the first line of a pipe that `is_it` accepts, without its line end; `None` if the pipe
/// ends or no such line arrives within `limit`. Later output is read and dropped, so that the
/// program never waits for a reader.
pub fn find_line(
    pipe: impl Read + Send + 'static,
    limit: Duration,
    is_it: impl Fn(&str) -> bool + Send + 'static,
) -> Option<String> {
    let (told, found) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut lines = BufReader::new(pipe).lines().map_while(Result::ok);
        let _ = told.send(lines.find(|line| is_it(line)));
        lines.for_each(drop);
    });
    found.recv_timeout(limit).ok().flatten()
}

/// Returns the first line of a pipe, as [`find_line`].
pub fn first_line(pipe: impl Read + Send + 'static, limit: Duration) -> Option<String> {
    find_line(pipe, limit, |_| true)
}

fn read_to_end(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (told, all) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        let _ = told.send(bytes);
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const SHORT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_output_of_an_ended_program_is_returned() {
        let output = output(&mut shell("echo out; echo err >&2; exit 3"), LONG);
        assert_eq!(
            (output.status.code(), &*output.stdout, &*output.stderr),
            (Some(3), &b"out\n"[..], &b"err\n"[..])
        );
    }

    #[test]
    #[should_panic(expected = "did not end within 200ms and was killed")]
    fn a_program_that_hangs_is_killed_and_named() {
        output(&mut shell("exec sleep 600"), SHORT);
    }

    #[test]
    fn a_line_is_waited_for_within_its_limit() {
        let find = |script: &str, limit, text: &'static str| {
            let mut child = shell(script)
                .stdout(Stdio::piped())
                .spawn()
                .expect("a shell starts");
            let pipe = child.stdout.take().expect("stdout is piped");
            let line = find_line(pipe, limit, move |line| line.contains(text));
            let _ = child.kill();
            let _ = child.wait();
            line
        };
        assert_eq!(find("echo one; echo two", LONG, "").as_deref(), Some("one"));
        assert_eq!(
            find("echo one; echo two", LONG, "w").as_deref(),
            Some("two")
        );
        assert_eq!(find("echo one", LONG, "w"), None);
        assert_eq!(find("echo one; exec sleep 600", SHORT, "w"), None);
    }
}
