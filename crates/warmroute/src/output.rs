//! The two streams of a terminal program. A closed stream is no error.

use std::io::Write;

use crate::log_queue;

/// Prints one line on stdout.
pub(crate) fn out(line: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// Prints one line on stderr, in order with the lines of the log, if one was started.
pub(crate) fn err(line: &str) {
    log_queue::push(format!("{line}\n").as_bytes());
}
