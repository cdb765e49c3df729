//! The `warmroute` program: one module per subcommand, and one file, `wire_up`, that builds the
//! router.

mod admin_tokens;
mod cli;
mod config_command;
mod config_search;
mod decision_record;
mod demo;
mod doctor_command;
mod drain;
mod encryption;
mod engine;
mod events_command;
mod examples;
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

use std::process::ExitCode;

use clap::Parser;
use tikv_jemallocator::Jemalloc;

// Bodies and futures of requests are large and short-lived: docs/decisions/0008-jemalloc.md.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    // Bad flags end here: clap prints what was expected and exits with 2.
    let code = match cli::Cli::parse().into_command() {
        cli::Command::Serve(args) => serve::run(&args),
        cli::Command::Engine(args) => engine::run(*args),
        cli::Command::Demo(args) => demo::run(&args),
        cli::Command::Doctor(args) => doctor_command::run(&args),
        cli::Command::Explain(args) => explain::run(&args),
        cli::Command::Indexer(args) => indexer_command::run(&args),
        cli::Command::Events(args) => events_command::run(&args),
        cli::Command::Simulate(args) => simulate_command::run(&args),
        cli::Command::Keys(args) => keys_command::run(&args),
        cli::Command::Replay(args) => replay_command::run(&args),
        cli::Command::Config(args) => config_command::run(&args),
    };
    log_queue::finish();
    code
}
