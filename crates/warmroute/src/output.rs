//! The two streams of a terminal program. A closed stream is no error: its reader has seen enough.

use std::io::{self, Write};

use parking_lot::Mutex;

use crate::{exit_code::ExitCode, log_queue};

/// The first failure of the output since [`end`].
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints one line on stdout. If it cannot be written, the command fails at its end.
pub(crate) fn out(line: &str) {
    record(print(line));
}

/// Prints a line on stdout for the program that started this one, which serves in any case.
pub(crate) fn announce(line: &str) {
    let _ = print(line);
}

/// Prints one line on stderr, in order with the lines of the log, if one was started.
pub(crate) fn err(line: &str) {
    log_queue::push(format!("{line}\n").as_bytes());
}

/// Records whether a part of the output was written.
pub(crate) fn record(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        FAILURE.lock().get_or_insert(error);
    }
}

/// Writes what is left of the output. Returns the exit code of a command that ended with `code`: one
/// whose result was not written has failed.
pub(crate) fn end(code: ExitCode) -> ExitCode {
    record(io::stdout().flush());
    let failure = FAILURE.lock().take();
    match failure {
        None => code,
        Some(error) => {
            err(&format!("warmroute: the output cannot be written: {error}"));
            if code == ExitCode::SUCCESS {
                ExitCode::FAILURE
            } else {
                code
            }
        }
    }
}

fn print(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush())
}
