//! `warmroute replay`: runs the requests of a decision log under a configuration.
//!
//! The log becomes a workload ([`recording`]), which is played through the routing code in front of
//! modelled engines, as many as the configuration has workers, at the recorded pace. The recorded
//! results are shown beside it; they come from other engines than the modelled ones, so the two are
//! similar, not equal.

mod recording;
mod summary;

use std::{path::PathBuf, str::FromStr};

use clap::Args;
use config::Settings;
use engine_model::Profile;
use serde::Serialize;
use simulate::{Cell, SimulationReport, Trace, TracePace, TraceSummary};

use self::recording::{RecordedResults, RecordedTrace};
use crate::{
    exit_code::ExitCode,
    from_settings, output,
    settings::{self, BAD_CONFIGURATION, BAD_FLAG},
    text_file,
};

/// Most modelled engines.
const MOST_WORKERS: usize = 1024;

#[derive(Args, Debug)]
#[command(
    after_help = "Exit code: 0 with a result; 2 for a bad flag; 78 for a log or a configuration that cannot be used; 1 where \
                  stdout cannot be written."
)]
pub(crate) struct ReplayArgs {
    /// The decision log: JSON lines as `decisions.log.path` gets them with `decisions.log.chains: true`, plain or .zst.
    #[arg(long, value_name = "FILE")]
    decisions: PathBuf,
    /// Configuration file (YAML) that the requests are routed by: its policy, its workers' number.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Model and hardware of the engines: 8b-h200, 70b-h100x4, 70b-h100x2, 32b-h100x2 or toy.
    #[arg(long, value_name = "NAME", default_value = "8b-h200", value_parser = Profile::from_str)]
    profile: Profile,
    /// Tokens that the cache of an engine holds, in place of the profile's.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    kv_tokens: Option<u32>,
    /// Print one JSON object on stdout and nothing else.
    #[arg(long)]
    json: bool,
}

/// Printed report.
#[derive(Debug, Serialize)]
struct ReplayReport {
    #[serde(flatten)]
    report: SimulationReport,
    recorded: RecordedResults,
}

/// Reason for a missing result.
enum ReplayCommandError {
    Config(Vec<config::Problem>),
    Message { message: String, code: u8 },
}

pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    match replayed(args) {
        Ok(replayed) if args.json => {
            output::out(&serde_json::to_string(&replayed).unwrap_or_default())
        }
        Ok(replayed) => output::out(summary::of(&replayed.report, &replayed.recorded).trim_end()),
        Err(ReplayCommandError::Config(problems)) => return settings::refuse(&problems),
        Err(ReplayCommandError::Message { message, code }) => {
            output::err(&format!("warmroute replay: {message}"));
            return ExitCode::from(code);
        }
    }
    ExitCode::SUCCESS
}

fn replayed(args: &ReplayArgs) -> Result<ReplayReport, ReplayCommandError> {
    let settings = settings::load(Some(&args.config), settings::environment(), &[])
        .map_err(ReplayCommandError::Config)?;
    let workers = workers(&settings)?;
    let file = args.decisions.display().to_string();
    let unusable = |problem: String| ReplayCommandError::Message {
        message: format!("{file}: {problem}"),
        code: BAD_CONFIGURATION,
    };
    let text = text_file::read(&args.decisions).map_err(|error| unusable(error.to_string()))?;
    let RecordedTrace {
        lines,
        block_size,
        recorded,
    } = recording::read(&text).map_err(|error| unusable(error.to_string()))?;
    drop(text);
    let mut trace = Trace::read(&lines, block_size).map_err(|error| unusable(error.to_string()))?;
    drop(lines);
    let profile = Profile {
        kv_tokens: args.kv_tokens.unwrap_or(args.profile.kv_tokens),
        ..args.profile
    };
    trace.drop_what_exceeds(&profile);
    if trace.requests.is_empty() {
        let message = format!(
            "no engine whose cache holds {} tokens takes any request: see --kv-tokens",
            profile.kv_tokens
        );
        return Err(ReplayCommandError::Message {
            message,
            code: BAD_FLAG,
        });
    }
    let cell = Cell {
        wait: settings.queue.wait,
        engine_priority: settings.queue.engine_priority,
        ..Cell::new(
            from_settings::routing(&settings),
            workers,
            TracePace::faster(1.0),
            profile,
        )
    };
    let report = SimulationReport {
        schema: SimulationReport::SCHEMA,
        trace: TraceSummary::of(file, &trace),
        profile: profile.name,
        fit: None,
        seed: cell.seed,
        cells: vec![simulate::run(&trace, &cell)],
    };
    Ok(ReplayReport { report, recorded })
}

/// Returns the number of workers in the configuration, one engine each.
fn workers(settings: &Settings) -> Result<u32, ReplayCommandError> {
    let workers = settings.workers.len();
    let few_enough = u32::try_from(workers)
        .ok()
        .filter(|_| (1..=MOST_WORKERS).contains(&workers));
    few_enough.ok_or_else(|| ReplayCommandError::Message {
        message: format!("the configuration has {workers} workers: expected 1 to {MOST_WORKERS}, one for each engine"),
        code: BAD_CONFIGURATION,
    })
}
