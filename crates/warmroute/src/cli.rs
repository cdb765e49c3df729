//! The command line.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Parser, Subcommand, ValueEnum};
use config::Secret;

use crate::{
    secret_file,
    setting_flags::{ListenerArgs, LoggingArgs, ReplicaArgs, RoutingArgs},
};

/// A router for LLM inference engines: each request goes to the engine that already holds its prompt's KV blocks.
#[derive(Debug, Parser)]
#[command(
    name = "warmroute",
    version,
    about,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Cli {
    /// Print a commented configuration file to start from, as `config init` does.
    #[arg(long)]
    generate_config: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

impl Cli {
    /// Returns the command; that of a flag in its place is the same command in another form.
    pub(crate) fn into_command(self) -> Command {
        match self.command {
            Some(command) if !self.generate_config => command,
            _ => Command::Config(ConfigArgs {
                command: ConfigCommand::Init(InitArgs { file: None }),
            }),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Route requests to inference engines.
    Serve(Box<ServeArgs>),
    /// Run one simulated engine: an OpenAI-compatible server with real KV events and no accelerator.
    Engine(Box<EngineArgs>),
    /// Simulated engines, the router and a multi-turn workload: `warm` beside `round_robin`, measured now.
    Demo(DemoArgs),
    /// Check that router and engines agree, before traffic: each failure names its fix.
    Doctor(Box<crate::doctor_command::DoctorArgs>),
    /// Say who would get a request, and why.
    Explain(Box<crate::explain::ExplainArgs>),
    /// Say over HTTP how much of a prompt each engine holds: the Conductor API, without routing anything.
    Indexer(Box<crate::indexer_command::IndexerArgs>),
    /// Show or record what an engine publishes.
    Events(Box<crate::events_command::EventsArgs>),
    /// Play a recorded workload through the router in front of modelled engines, and say what each policy would do.
    Simulate(Box<crate::simulate_command::SimulateArgs>),
    /// Play recorded workloads under `warm` and under the rules of other routers, as one table; fails where `warm` is worse.
    Compare(crate::compare_command::CompareArgs),
    /// Play a decision log through the router with a configuration, and say what that would do.
    Replay(Box<crate::replay_command::ReplayArgs>),
    /// Make, list and revoke keys of clients in a file of `tenants.keys_file`.
    Keys(crate::keys_command::KeysArgs),
    /// Check and show configurations.
    Config(ConfigArgs),
}

// Without a group of its own: the flattened struct has one of the same name.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    pub(crate) engine: engine_sim::EngineArgs,
    /// Print one JSON line with the bound addresses on stdout.
    #[arg(long)]
    pub(crate) print_ready: bool,
}

/// Where settings come from. Precedence: flag, environment (`WARMROUTE_*`), file, default.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Configuration file (YAML). Without it and without workers in flags or variables, it is searched: ./config.yaml,
    /// then config.yaml in /etc and ~/.config, each in the directory warmroute or continuum-router; or config.yml.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) workers: WorkerArgs,
    #[command(flatten)]
    pub(crate) listeners: ListenerArgs,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// Take the listening sockets of the process that runs with this configuration, which then ends with what it has begun.
    #[arg(long)]
    pub(crate) takeover: bool,
    /// Print one JSON line with the bound addresses on stdout.
    #[arg(long)]
    pub(crate) print_ready: bool,
    #[command(flatten)]
    pub(crate) routing: RoutingArgs,
    #[command(flatten)]
    pub(crate) replicas: ReplicaArgs,
    #[command(flatten)]
    pub(crate) logging: LoggingArgs,
}

/// The workers and their models.
#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// An engine, by URL; repeat for more. A name may stand in front. Without any engine nothing is started, unless the
    /// configuration file says `workers: []`.
    #[arg(short, long = "worker", value_name = "[NAME=]URL")]
    pub(crate) workers: Vec<String>,
    /// Directory with tokenizer.json for a model; repeat for more.
    #[arg(long = "tokenizer", value_name = "MODEL=DIR")]
    pub(crate) tokenizers: Vec<NameValue>,
    /// Tokens per KV block of every worker, where probing is not to be trusted.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) block_size: Option<u32>,
    /// Where a worker publishes KV events; repeat for more.
    #[arg(long = "kv-events", value_name = "WORKER=ENDPOINT")]
    pub(crate) kv_events: Vec<NameValue>,
    /// File that keeps the workers which operators add and take out, over a restart.
    #[arg(long, value_name = "FILE")]
    pub(crate) state_file: Option<PathBuf>,
}

/// Who may call.
#[derive(Args, Debug)]
pub(crate) struct AccessArgs {
    /// Key that clients must send as a bearer token; without the flag, that of the variable WARMROUTE_API_KEY. Other users
    /// of the machine see arguments of a process: the variable or --api-key-file is safer.
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) api_key: Option<String>,
    /// File that holds this key, read at the start.
    #[arg(long, value_name = "FILE", value_parser = secret_file::client_key, conflicts_with = "api_key")]
    pub(crate) api_key_file: Option<Secret>,
    /// File that holds the token of the admin listener.
    #[arg(long, value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// Listen beyond this machine without an API key.
    #[arg(long)]
    pub(crate) insecure_open: bool,
}

/// `NAME=VALUE`, neither of them empty.
#[derive(Clone, Debug)]
pub(crate) struct NameValue(pub(crate) String, pub(crate) String);

impl FromStr for NameValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                Ok(Self(name.into(), value.into()))
            }
            _ => Err("expected NAME=VALUE with both sides filled".to_owned()),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Simulated engines.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: u32,
    /// Repeat for about this many seconds.
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<u64>,
    /// One round of both policies, then end. Without it (and without --seconds) it goes on until Ctrl-C.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one JSON object on stdout and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Another seed is another workload.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print a commented file to start from, or write it to FILE where there is none yet.
    Init(InitArgs),
    /// Check a configuration: all problems at once, each with its line; exit code 78 if there are any.
    Check(ConfigFileArgs),
    /// Print the effective configuration, secrets masked.
    Show(ConfigFileArgs),
    /// Print the JSON schema of the configuration.
    Schema,
    /// Translate another router's configuration: YAML on stdout, with a comment for each key that has no counterpart.
    Convert(ConvertArgs),
}

#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    /// Where to write it; without it, it goes to stdout.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// Which router it is for.
    #[arg(long, value_enum, value_name = "ROUTER")]
    pub(crate) from: OtherRouter,
    /// Its configuration file, of `smg` a file with its command line; `-` = standard input. Of `continuum` it may be left
    /// out: the file is searched where that router searches it.
    #[arg(value_name = "FILE", conflicts_with = "flags")]
    pub(crate) file: Option<PathBuf>,
    /// Its command line, behind `--` (`smg` and `vllm-router`).
    #[arg(value_name = "FLAGS", last = true)]
    pub(crate) flags: Vec<String>,
}

/// A router whose configuration can be translated.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OtherRouter {
    /// Continuum Router: a file.
    Continuum,
    /// vLLM Router: a file, or flags.
    VllmRouter,
    /// sglang-router and smg: flags.
    Smg,
}

#[derive(Args, Debug)]
pub(crate) struct ConfigFileArgs {
    /// Configuration file (YAML).
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The same, as for `serve`.
    #[arg(short, long = "config", value_name = "FILE", conflicts_with = "file")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Cli::command().debug_assert();
    }
}
