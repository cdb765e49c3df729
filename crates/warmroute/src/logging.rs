//! The log, on stderr.

use std::io::IsTerminal;

use config::{Level, LogFormat, Logging};
use tracing_subscriber::{EnvFilter, fmt};

/// Starts the log. Later calls change nothing, so that a demo with two routers in one process has one log.
pub(crate) fn start(logging: &Logging) {
    let level = match logging.level {
        Level::Trace => "trace",
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warn",
        Level::Error => "error",
    };
    let pretty = match logging.format {
        LogFormat::Pretty => true,
        LogFormat::Json => false,
        LogFormat::Auto => std::io::stderr().is_terminal(),
    };
    let log = fmt().with_env_filter(EnvFilter::new(level)).with_writer(std::io::stderr);
    let _ = if pretty { log.with_ansi(logging.enable_colors).try_init() } else { log.json().try_init() };
}
