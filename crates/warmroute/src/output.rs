//! The two streams of a terminal program. A reader that went away is no error.

use std::io::Write;

use crate::log_queue;

/// One line on stdout.
pub(crate) fn out(line: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// One line on stderr, in its place among those of the log, where one was started.
pub(crate) fn err(line: &str) {
    log_queue::push(format!("{line}\n").as_bytes());
}
