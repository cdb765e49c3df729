//! Flags of `warmroute simulate`, and the ranges of their values.

use std::{path::PathBuf, str::FromStr, time::Duration};

use clap::Args;
use engine_model::Profile;
use kv_blocks::{BlockSize, BlockSizeError};
use routing::{Policy, UnknownPolicy};
use simulate::{
    FaultPlan, FetchLink, LostView, SlowEngine,
    ranges::{
        LATEST_S, LONGEST_DELAY_MS, LONGEST_TTFT_MS, MOST_GB_PER_S, MOST_LOAD, MOST_ROUTERS,
        MOST_SLOWER, MOST_SPEEDUP, MOST_WORKERS,
    },
};

use super::{files::ReportOutput, session_args::SessionArgs, trace_file::TraceSource};
use crate::cli::NameValue;

const AFTER_HELP: &str = "Exit code: 0 with a result; 2 for a bad flag; 78 for a trace or a log that cannot be used; 1 where a file \
or stdout cannot be written.\n\nSynthetic workloads and their parameters, the keys that --set takes, and what the figures leave out: \
docs/simulate.md.";

/// Time of a read of blocks besides that on the connection, in ms, unless a flag says otherwise.
const FETCH_FLOOR_MS: u64 = 5;

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(super) workload: WorkloadArgs,
    /// A policy to try; repeat or separate by commas for more.
    #[arg(long = "policy", value_name = "NAME", value_delimiter = ',', default_values = ["round_robin", "warm"],
          value_parser = policy)]
    pub(super) policies: Vec<Policy>,
    /// Numbers of engines to try, separated by commas.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [8],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_WORKERS)))]
    pub(super) workers: Vec<u32>,
    #[command(flatten)]
    pub(super) pace: PaceArgs,
    #[command(flatten)]
    pub(super) sessions: SessionArgs,
    #[command(flatten)]
    pub(super) engine: SimulatedEngineArgs,
    #[command(flatten)]
    pub(super) events: EventArgs,
    #[command(flatten)]
    pub(super) replicas: ReplicaArgs,
    /// A key of the configuration and its value, such as queue.enabled=false; repeat for more.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) settings: Vec<NameValue>,
    #[command(flatten)]
    pub(super) faults: FaultArgs,
    /// Another seed settles ties and loses messages differently.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// The workload.
#[derive(Args, Debug)]
pub(super) struct WorkloadArgs {
    /// The workload: a file of JSON lines with timestamp (ms), input_length, output_length and hash_ids, plain or .zst; or
    /// one that is made up, such as synthetic:chat?sessions=200&seed=7 (also agents, tenants, fanout).
    #[arg(long, value_name = "FILE|synthetic:KIND", value_parser = TraceSource::from_str)]
    pub(super) trace: TraceSource,
    /// Tokens that one of the trace's hash_ids stands for.
    #[arg(long, value_name = "TOKENS", default_value = "512", value_parser = block_size)]
    pub(super) trace_block_tokens: BlockSize,
    /// The model of the requests for which the trace names none: its settings are those of routing.models.
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
}

/// The speed of the trace, and the wanted speed of the replies.
#[derive(Args, Debug)]
pub(super) struct PaceArgs {
    /// How hard the engines have to work: share of their time that useful work would take, separated by commas
    /// [default: 0.55].
    #[arg(long, value_name = "SHARE", value_delimiter = ',', value_parser = load, conflicts_with = "speedup")]
    pub(super) load: Vec<f64>,
    /// Play the trace so many times faster than recorded, whatever load that is.
    #[arg(long, value_name = "TIMES", value_parser = speedup)]
    pub(super) speedup: Option<f64>,
    /// Target for the time to first token of every request, for the router (as routing.slo.ttft) and for the share of the
    /// requests that meet it.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=LONGEST_TTFT_MS))]
    pub(super) slo_ttft_ms: Option<u64>,
}

/// The engines.
#[derive(Args, Debug)]
pub(super) struct SimulatedEngineArgs {
    /// Model and hardware of the engines: 8b-h200, 70b-h100x4, 70b-h100x2, 32b-h100x2 or toy.
    #[arg(long, value_name = "NAME", default_value = "8b-h200", value_parser = Profile::from_str)]
    pub(super) profile: Profile,
    /// Take the engines' times from this decision log (JSON lines, plain or .zst) of a router before your own; what it does
    /// not tell, such as the size of their caches, is as in the profile.
    #[arg(long, value_name = "FILE")]
    pub(super) fit: Option<PathBuf>,
    /// Tokens that the cache of an engine holds, in place of the profile's.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) kv_tokens: Option<u32>,
    /// Let engines read blocks from each other, where the policy warm finds that cheaper than to compute them: over
    /// connections of so many 10^9 bytes per second, 131,072 bytes for each token.
    #[arg(long, value_name = "GB/S", value_parser = gb_per_s)]
    pub(super) fetch_gb_s: Option<f64>,
    /// Time of such a read besides that on the connection [default: 5].
    #[arg(long, value_name = "MS", requires = "fetch_gb_s",
          value_parser = clap::value_parser!(u64).range(0..=LONGEST_DELAY_MS))]
    pub(super) fetch_floor_ms: Option<u64>,
}

impl SimulatedEngineArgs {
    /// Returns the connections between engines, if they read blocks from each other.
    pub(super) fn fetch_link(&self) -> Option<FetchLink> {
        let floor_ms = self.fetch_floor_ms.unwrap_or(FETCH_FLOOR_MS);
        self.fetch_gb_s.map(|gb_per_s| FetchLink {
            gb_per_s,
            floor: Duration::from_millis(floor_ms),
        })
    }
}

/// The engines' events.
#[derive(Args, Debug)]
pub(super) struct EventArgs {
    /// Time from a change of a cache to the router's knowledge of it.
    #[arg(long, value_name = "MS", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(0..=LONGEST_DELAY_MS))]
    pub(super) event_delay_ms: u64,
    /// Share of the events' messages that get lost, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = loss)]
    pub(super) event_loss: f64,
}

/// The routers in front of the engines.
#[derive(Args, Debug)]
pub(super) struct ReplicaArgs {
    /// Numbers of routers to try, separated by commas; each request goes to one that is drawn.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_ROUTERS)))]
    pub(super) routers: Vec<u32>,
    /// The routers tell each other their load.
    #[arg(long)]
    pub(super) load_sync: bool,
    /// Time from the sending of a message about load to its arrival.
    #[arg(long, value_name = "MS", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(0..=LONGEST_DELAY_MS))]
    pub(super) exchange_delay_ms: u64,
    /// Share of these messages that get lost, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = loss)]
    pub(super) exchange_loss: f64,
}

/// Deviations from a healthy fleet.
#[derive(Args, Debug)]
pub(super) struct FaultArgs {
    /// An engine, from w1 on, that takes so many times as long for everything; repeat for more.
    #[arg(long, value_name = "WORKER=TIMES", value_parser = slow)]
    pub(super) slow: Vec<SlowEngine>,
    /// The router loses its view of an engine's cache so many seconds of virtual time after the first request; repeat for
    /// more.
    #[arg(long, value_name = "WORKER=SECONDS", value_parser = forgotten)]
    pub(super) forget: Vec<LostView>,
}

/// The form of the result.
#[derive(Args, Debug)]
pub(super) struct OutputArgs {
    /// Write the report there, too: FILE.json, FILE.html (with charts, for a browser), or a folder that gets both as
    /// report.json and report.html; repeat for more.
    #[arg(long, value_name = "FILE|DIR", value_parser = ReportOutput::from_str)]
    pub(super) out: Vec<ReportOutput>,
    /// Write the workload to this file as JSON lines, and simulate nothing.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    pub(super) write_trace: Option<PathBuf>,
    /// Print one JSON object on stdout and nothing else.
    #[arg(long)]
    pub(super) json: bool,
}

impl SimulateArgs {
    /// Returns the deviations from a healthy fleet, for every fleet size; an error message if the
    /// smallest fleet has no such engine.
    pub(super) fn faults(&self) -> Result<FaultPlan, String> {
        let fewest = self.workers.iter().min().copied().unwrap_or(0);
        let FaultArgs { slow, forget } = &self.faults;
        let slowed = slow.iter().map(|slow| ("--slow", slow.worker));
        let forgotten = forget
            .iter()
            .map(|forgotten| ("--forget", forgotten.worker));
        match slowed
            .chain(forgotten)
            .find(|(_, worker)| *worker >= fewest)
        {
            Some((flag, worker)) => Err(format!(
                "{flag}: there is no w{}: expected one of w1 to w{fewest}",
                worker.saturating_add(1)
            )),
            None => Ok(FaultPlan {
                slow: slow.clone(),
                forgotten: forget.clone(),
            }),
        }
    }
}

fn policy(name: &str) -> Result<Policy, UnknownPolicy> {
    name.parse()
}

fn block_size(text: &str) -> Result<BlockSize, String> {
    let tokens = text
        .parse()
        .map_err(|_| "expected a whole number of tokens".to_owned())?;
    BlockSize::new(tokens).map_err(|error: BlockSizeError| error.to_string())
}

fn load(text: &str) -> Result<f64, String> {
    number(
        text,
        |load| load > 0.0 && load <= MOST_LOAD,
        "expected a number above 0, at most 100; 0.55 is a busy fleet",
    )
}

fn speedup(text: &str) -> Result<f64, String> {
    number(
        text,
        |times| times > 0.0 && times <= MOST_SPEEDUP,
        "expected a number above 0, at most 1000000",
    )
}

fn gb_per_s(text: &str) -> Result<f64, String> {
    number(
        text,
        |speed| speed > 0.0 && speed <= MOST_GB_PER_S,
        "expected a number above 0, at most 10000",
    )
}

fn loss(text: &str) -> Result<f64, String> {
    number(
        text,
        |share| (0.0..=1.0).contains(&share),
        "expected a number from 0 to 1",
    )
}

fn slow(text: &str) -> Result<SlowEngine, String> {
    let expected = "expected an engine and a number from 0.001 to 1000, such as w1=3.0";
    let (worker, times) = of_worker(text).ok_or(expected)?;
    let times = number(
        times,
        |times| (1.0 / MOST_SLOWER..=MOST_SLOWER).contains(&times),
        expected,
    )?;
    Ok(SlowEngine { worker, times })
}

fn forgotten(text: &str) -> Result<LostView, String> {
    let expected = "expected an engine and seconds, at most a year, such as w1=30";
    let (worker, seconds) = of_worker(text).ok_or(expected)?;
    let seconds = number(
        seconds,
        |seconds| (0.0..=LATEST_S).contains(&seconds),
        expected,
    )?;
    Ok(LostView {
        worker,
        at: Duration::from_secs_f64(seconds),
    })
}

/// Parses `w1=VALUE` or `1=VALUE`: the engine, from 0, and the value.
fn of_worker(text: &str) -> Option<(u32, &str)> {
    let (worker, value) = text.split_once('=')?;
    let number: u32 = worker.strip_prefix('w').unwrap_or(worker).parse().ok()?;
    Some((number.checked_sub(1)?, value))
}

pub(super) fn number(
    text: &str,
    fits: impl Fn(f64) -> bool,
    expected: &str,
) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number| fits(*number))
        .ok_or_else(|| expected.to_owned())
}
