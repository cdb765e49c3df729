//! The log, on stderr. Logging never waits for the reader of stderr: see [`log_queue`].

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal, Write},
    panic::PanicHookInfo,
    sync::OnceLock,
};

use config::{LogFormat, LogLevel, LoggingSection};
use tracing_subscriber::{EnvFilter, fmt};

use crate::log_queue;

/// Sets the level of the started log.
static SET_LEVEL: OnceLock<Box<dyn Fn(LogLevel) + Send + Sync>> = OnceLock::new();

/// Starts the log. Later calls change nothing, so that a demo with two routers in one process has
/// one log.
pub(crate) fn start(logging: &LoggingSection) {
    log_queue::start();
    let pretty = is_pretty(logging.format, std::io::stderr().is_terminal());
    let log = fmt()
        .with_env_filter(filter(logging.level))
        .with_writer(|| QueueWriter);
    // The type of a handle depends on the layer, which the two formats do not share.
    if pretty {
        let log = log.with_ansi(logging.enable_colors).with_filter_reloading();
        let handle = log.reload_handle();
        if log.try_init().is_ok() {
            let _ = SET_LEVEL.set(Box::new(move |level| drop(handle.reload(filter(level)))));
        }
    } else {
        let log = log.json().with_filter_reloading();
        let handle = log.reload_handle();
        if log.try_init().is_ok() {
            let _ = SET_LEVEL.set(Box::new(move |level| drop(handle.reload(filter(level)))));
        }
    }
    std::panic::set_hook(Box::new(log_panic));
}

/// Pushes lines to the queue. The formatter writes each event with one call.
struct QueueWriter;

impl Write for QueueWriter {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        log_queue::push(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs a panic. The standard hook writes to stderr itself, and would wait for its reader.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let location = panic.location().map(ToString::to_string);
    let message = panic.payload_as_str().unwrap_or("(no message)");
    // Captured if RUST_BACKTRACE enables it.
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(
        thread = thread.name(),
        location,
        panic = message,
        backtrace,
        "panic"
    );
}

/// Logs from this level on.
pub(crate) fn set_level(level: LogLevel) {
    if let Some(set) = SET_LEVEL.get() {
        set(level);
    }
}

fn filter(level: LogLevel) -> EnvFilter {
    EnvFilter::new(match level {
        // The tokenizer's library writes thousands of lines for each prompt there, with its text.
        LogLevel::Trace => "trace,tokenizers=debug",
        level => level.as_str(),
    })
}

fn is_pretty(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Pretty => true,
        LogFormat::Json => false,
        LogFormat::Auto => terminal,
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("CH29")]
    fn lines_are_for_people_on_a_terminal_and_json_elsewhere_unless_said_otherwise() {
        for (format, terminal, pretty) in [
            (LogFormat::Auto, true, true),
            (LogFormat::Auto, false, false),
            (LogFormat::Json, true, false),
            (LogFormat::Pretty, false, true),
        ] {
            assert_eq!(is_pretty(format, terminal), pretty, "{format:?} {terminal}");
        }
    }
}
