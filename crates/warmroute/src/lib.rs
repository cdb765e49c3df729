//! The `warmroute` program as a library: one module per subcommand, and one file, `wire_up`, that
//! builds the router.
//!
//! The program `warmroute` and the command of the Python package call [`run`]; [`embed`] is the
//! router inside another program. An allocator is not chosen here: a process that loads this code at
//! run time has one already.

mod admin_tokens;
mod cli;
mod compare_command;
mod config_command;
mod config_search;
mod decision_record;
mod demo;
mod doctor_command;
mod drain;
pub mod embed;
mod encryption;
mod engine;
mod events_command;
mod examples;
mod exit_code;
mod explain;
mod from_settings;
mod index_snapshot;
mod indexer_command;
mod keys_command;
mod limits;
mod live;
mod log_queue;
mod logging;
mod memory_budget;
mod output;
mod private_file;
mod replay_command;
mod secret_file;
mod serve;
mod setting_flags;
mod settings;
mod signals;
mod simulate_command;
mod stall_watch;
mod takeover;
mod text_file;
mod wire_up;

use std::ffi::OsString;

use clap::Parser as _;

pub use exit_code::ExitCode;
pub use simulate_command::{ConfiguredRouter, check_models, configured_router};

/// The program's name where its caller does not say it.
const PROGRAM: &str = "warmroute";

/// Runs the program with these arguments, of which the first is the program's name, and returns
/// its exit code.
///
/// It is meant for the main thread of a process that does nothing else: most commands catch SIGINT
/// and SIGTERM until the process ends, start the log, and set the process's panic hook.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let program = arguments.first().map_or_else(
        || PROGRAM.to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let code = match cli::Cli::try_parse_from(arguments) {
        Ok(cli) => run_command(cli.into_command(), program),
        // Help, the version, or a bad flag with what was expected.
        Err(answer) => {
            let printed = answer.print();
            if !answer.use_stderr() {
                output::record(printed);
            }
            u8::try_from(answer.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    };
    let code = output::end(code);
    log_queue::finish();
    code
}

fn run_command(command: cli::Command, program: String) -> ExitCode {
    match command {
        cli::Command::Serve(args) => serve::run(&args, program),
        cli::Command::Engine(args) => engine::run(*args),
        cli::Command::Demo(args) => demo::run(&args),
        cli::Command::Doctor(args) => doctor_command::run(&args),
        cli::Command::Explain(args) => explain::run(&args),
        cli::Command::Indexer(args) => indexer_command::run(&args),
        cli::Command::Events(args) => events_command::run(&args),
        cli::Command::Simulate(args) => simulate_command::run(&args),
        cli::Command::Compare(args) => compare_command::run(&args),
        cli::Command::Keys(args) => keys_command::run(&args),
        cli::Command::Replay(args) => replay_command::run(&args),
        cli::Command::Config(args) => config_command::run(&args),
    }
}
