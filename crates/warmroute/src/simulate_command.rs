//! `warmroute simulate`: what policies would do with a recorded workload, before anybody deploys them.
//!
//! It reads the trace, spreads the experiments over the machine's cores and prints what comes out; the simulation itself
//! is crate `simulate`.

mod cells;
mod table;
mod trace_file;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use engine_model::Profile;
use kv_blocks::{BlockSize, BlockSizeError};
use routing::{Policy, RoutingSettings, UnknownPolicy};
use simulate::{Cell, Pace, Report, Trace, TraceSummary, infinite_hit_ratio};

use crate::{
    output,
    settings::{BAD_CONFIGURATION, BAD_FLAG},
};

/// Largest load index: far beyond what any fleet keeps up with.
const MOST_LOAD: f64 = 100.0;
/// Largest speed-up.
const MOST_SPEEDUP: f64 = 1e6;
/// Longest way of an event, in ms.
const LONGEST_DELAY_MS: u64 = 600_000;
/// Most simulated engines.
const MOST_WORKERS: i64 = 1024;

#[derive(Args, Debug)]
#[command(after_help = "Exit code: 0 with a result; 2 for a bad flag; 78 for a trace that cannot be read.")]
pub(crate) struct SimulateArgs {
    /// The workload: JSON lines with timestamp (ms), input_length, output_length and hash_ids, plain or .zst.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// A policy to try; repeat or separate by commas for more.
    #[arg(long = "policy", value_name = "NAME", value_delimiter = ',', default_values = ["round_robin", "warm"],
          value_parser = policy)]
    policies: Vec<Policy>,
    /// Numbers of engines to try, separated by commas.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [8],
          value_parser = clap::value_parser!(u32).range(1..=MOST_WORKERS))]
    workers: Vec<u32>,
    /// How hard the engines have to work: share of their time that useful work would take, separated by commas
    /// [default: 0.55].
    #[arg(long, value_name = "SHARE", value_delimiter = ',', value_parser = load, conflicts_with = "speedup")]
    load: Vec<f64>,
    /// Play the trace so many times faster than recorded, whatever load that is.
    #[arg(long, value_name = "TIMES", value_parser = speedup)]
    speedup: Option<f64>,
    /// Model and hardware of the engines: 8b-h200, 70b-h100x4, 70b-h100x2, 32b-h100x2 or toy.
    #[arg(long, value_name = "NAME", default_value = "8b-h200", value_parser = profile)]
    profile: Profile,
    /// Tokens that the cache of an engine holds, in place of the profile's.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    kv_tokens: Option<u32>,
    /// Time from a change of a cache to the router's knowledge of it.
    #[arg(long, value_name = "MS", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(0..=LONGEST_DELAY_MS))]
    event_delay_ms: u64,
    /// Share of the events' messages that get lost, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = loss)]
    event_loss: f64,
    /// Another seed settles ties and loses messages differently.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Tokens that one of the trace's hash_ids stands for.
    #[arg(long, value_name = "TOKENS", default_value = "512", value_parser = block_size)]
    trace_block_tokens: BlockSize,
    /// Print one JSON object on stdout and nothing else.
    #[arg(long)]
    json: bool,
}

/// Why there is no result, and the exit code that says so.
struct Trouble {
    message: String,
    code: u8,
}

pub(crate) fn run(args: &SimulateArgs) -> ExitCode {
    match simulated(args) {
        Ok(report) if args.json => output::out(&serde_json::to_string(&report).unwrap_or_default()),
        Ok(report) => output::out(table::of(&report).trim_end()),
        Err(trouble) => {
            output::err(&format!("warmroute simulate: {}", trouble.message));
            return ExitCode::from(trouble.code);
        }
    }
    ExitCode::SUCCESS
}

fn simulated(args: &SimulateArgs) -> Result<Report, Trouble> {
    let file = args.trace.display().to_string();
    let unusable = |problem: String| Trouble { message: format!("{file}: {problem}"), code: BAD_CONFIGURATION };
    let text = trace_file::read(&args.trace).map_err(|error| unusable(error.to_string()))?;
    let mut trace = Trace::read(&text, args.trace_block_tokens).map_err(|error| unusable(error.to_string()))?;
    drop(text);
    let profile = Profile { kv_tokens: args.kv_tokens.unwrap_or(args.profile.kv_tokens), ..args.profile };
    trace.drop_what_exceeds(&profile);
    if trace.requests.is_empty() {
        let message = format!(
            "none of the {} requests fits an engine whose cache holds {} tokens: give it more with --kv-tokens",
            trace.dropped, profile.kv_tokens
        );
        return Err(Trouble { message, code: BAD_FLAG });
    }
    let cells = cells(args, &trace, profile);
    Ok(Report {
        schema: Report::SCHEMA,
        trace: TraceSummary {
            requests: trace.requests.len(),
            dropped: trace.dropped,
            blocks: trace.blocks(),
            infinite_hit_ratio: (infinite_hit_ratio(&trace) * 1e6).round() / 1e6,
            file,
        },
        profile: profile.name,
        seed: args.seed,
        cells: cells::run(&trace, &cells),
    })
}

/// Every combination of engines, load and policy, in this order.
fn cells(args: &SimulateArgs, trace: &Trace, profile: Profile) -> Vec<Cell> {
    let usual = [0.55];
    let loads = if args.load.is_empty() { &usual[..] } else { &args.load[..] };
    let paces = |workers: u32| match args.speedup {
        Some(times) => vec![Pace::faster(times)],
        None => loads.iter().map(|load| Pace::for_load(trace, &profile, workers, *load)).collect(),
    };
    let mut cells = Vec::new();
    for workers in args.workers.iter().copied() {
        for pace in paces(workers) {
            cells.extend(args.policies.iter().map(|policy| Cell {
                routing: RoutingSettings { policy: *policy, ..RoutingSettings::default() },
                workers,
                pace,
                profile,
                event_delay: Duration::from_millis(args.event_delay_ms),
                event_loss: args.event_loss,
                seed: args.seed,
            }));
        }
    }
    cells
}

fn policy(name: &str) -> Result<Policy, UnknownPolicy> {
    name.parse()
}

fn profile(name: &str) -> Result<Profile, String> {
    let known = || Profile::ALL.iter().map(|profile| profile.name).collect::<Vec<_>>().join(", ");
    Profile::named(name).ok_or_else(|| format!("expected one of {}", known()))
}

fn block_size(text: &str) -> Result<BlockSize, String> {
    let tokens = text.parse().map_err(|_| "expected a whole number of tokens".to_owned())?;
    BlockSize::new(tokens).map_err(|error: BlockSizeError| error.to_string())
}

fn load(text: &str) -> Result<f64, String> {
    number(text, |load| load > 0.0 && load <= MOST_LOAD, "expected a number above 0, at most 100; 0.55 is a busy fleet")
}

fn speedup(text: &str) -> Result<f64, String> {
    number(text, |times| times > 0.0 && times <= MOST_SPEEDUP, "expected a number above 0, at most 1000000")
}

fn loss(text: &str) -> Result<f64, String> {
    number(text, |share| (0.0..=1.0).contains(&share), "expected a number from 0 to 1")
}

fn number(text: &str, fits: impl Fn(f64) -> bool, expected: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number| fits(*number)).ok_or_else(|| expected.to_owned())
}
