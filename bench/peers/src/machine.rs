//! The machine and the command of a run.

use std::fs;

use time::{OffsetDateTime, macros::format_description};

/// The information needed to judge or reproduce figures.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct RunEnvironment {
    /// Model of the processor; `None` if the system does not report it.
    pub(crate) cpu: Option<String>,
    /// Cores this process may use.
    pub(crate) cores: usize,
    /// The command.
    pub(crate) command: String,
    /// Day of the run, UTC.
    pub(crate) date: String,
    /// Number of repetitions; the figures are their medians.
    pub(crate) reps: u32,
    /// Whether only a quarter of each workload was run.
    pub(crate) quick: bool,
}

impl RunEnvironment {
    pub(crate) fn this(reps: u32, quick: bool) -> Self {
        Self {
            cpu: cpu_model(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            command: command(std::env::args().skip(1)),
            date: OffsetDateTime::now_utc()
                .format(format_description!("[year]-[month]-[day]"))
                .expect("a date has year, month and day"),
            reps,
            quick,
        }
    }
}

/// Returns the command with these arguments in a form valid on any machine: a local folder becomes
/// `DIR`.
fn command(arguments: impl IntoIterator<Item = String>) -> String {
    let mut command = "cargo run --release --manifest-path bench/peers/Cargo.toml --".to_owned();
    let mut folder_follows = false;
    for argument in arguments {
        let shown = match argument.as_str() {
            _ if folder_follows => "DIR",
            inline if inline.starts_with("--traces=") => "--traces=DIR",
            other => other,
        };
        folder_follows = argument == "--traces";
        command.extend([" ", shown]);
    }
    command
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tells_nothing_about_folders_of_this_machine() {
        let told =
            |arguments: &[&str]| command(arguments.iter().map(|argument| (*argument).to_owned()));
        assert!(told(&["--traces", "/home/me", "--json"]).ends_with("-- --traces DIR --json"));
        assert!(told(&["--traces=/home/me"]).ends_with("-- --traces=DIR"));
    }
}
