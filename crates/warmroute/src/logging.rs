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
    let pretty = is_pretty(logging.format, std::io::stderr().is_terminal());
    let log = fmt().with_env_filter(EnvFilter::new(level)).with_writer(std::io::stderr);
    let _ = if pretty { log.with_ansi(logging.enable_colors).try_init() } else { log.json().try_init() };
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
