//! `warmroute simulate`: compares policies on a workload before a deployment.
//!
//! It reads or generates the trace, spreads the experiments over the machine's cores and prints the
//! results; the simulation itself is crate `simulate`.

mod args;
mod cells;
mod files;
mod fitted;
mod session_args;
mod table;
mod trace_file;
mod what_if;

use std::time::Duration;

pub(crate) use args::SimulateArgs;
use engine_model::Profile;
use simulate::{
    Cell, ExperimentPlan, FaultPlan, PlannedPace, ReplicaPlan, SimulationReport, Trace, TracePace,
    TraceSummary,
};

pub use self::what_if::{ConfiguredRouter, check_models, configured_router};
pub(crate) use self::{cells::ProgressLine, files::write};
use crate::{
    cli::NameValue,
    exit_code::ExitCode,
    output,
    settings::{BAD_CONFIGURATION, BAD_FLAG},
};

/// Message for a trace that cannot be played in a closed loop.
const NO_SESSIONS: &str =
    "no request in it belongs to a session: expected session_id or session in each line";

/// Exit code if a file cannot be written.
const NOT_WRITTEN: u8 = 1;

/// Reason for a missing result, with its exit code.
struct SimulateError {
    message: String,
    code: u8,
}

pub(crate) fn run(args: &SimulateArgs) -> ExitCode {
    let done = match &args.output.write_trace {
        Some(path) => text(args).and_then(|text| files::write(path, &text).map_err(not_written)),
        None => simulated(args).and_then(|report| print_report(args, &report)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::err(&format!("warmroute simulate: {}", error.message));
            ExitCode::from(error.code)
        }
    }
}

/// Prints the report on stdout before it writes files, so that a full disk does not lose the
/// results.
fn print_report(args: &SimulateArgs, report: &SimulationReport) -> Result<(), SimulateError> {
    if args.output.json {
        output::out(&files::json(report));
    } else {
        output::out(table::of(report).trim_end());
    }
    args.output
        .out
        .iter()
        .try_for_each(|out| out.write(report))
        .map_err(not_written)
}

fn not_written(message: String) -> SimulateError {
    SimulateError {
        message,
        code: NOT_WRITTEN,
    }
}

/// Returns the workload, read or generated.
fn text(args: &SimulateArgs) -> Result<String, SimulateError> {
    let sessions = args.sessions.is_closed_loop();
    let workload = &args.workload;
    (workload.trace)
        .text(workload.trace_block_tokens, sessions)
        .map_err(|problem| unusable(args, &problem))
}

fn unusable(args: &SimulateArgs, problem: &str) -> SimulateError {
    SimulateError {
        message: format!("{}: {problem}", args.workload.trace),
        code: BAD_CONFIGURATION,
    }
}

fn simulated(args: &SimulateArgs) -> Result<SimulationReport, SimulateError> {
    let bad_flag = |message| SimulateError {
        message,
        code: BAD_FLAG,
    };
    let changes: Vec<_> = (args.settings.iter())
        .map(|NameValue(key, value)| (&**key, &**value))
        .collect();
    let configured = configured_router(&changes, "--set").map_err(bad_flag)?;
    let faults = args.faults().map_err(bad_flag)?;
    let fitted = args.engine.fit.as_ref().map(|log| {
        let fit_error = |problem| SimulateError {
            message: format!("{}: {problem}", log.display()),
            code: BAD_CONFIGURATION,
        };
        fitted::read(log, &args.engine.profile).map_err(fit_error)
    });
    let fitted = fitted.transpose()?;
    let profile = fitted
        .as_ref()
        .map_or(args.engine.profile, |fitted| fitted.profile);
    let mut trace = Trace::read(&text(args)?, args.workload.trace_block_tokens)
        .map_err(|error| unusable(args, &error.to_string()))?;
    if let Some(model) = &args.workload.model {
        trace.name_models(model);
    }
    check_models(&configured.routing, &trace, "--set", "--model").map_err(bad_flag)?;
    let profile = Profile {
        kv_tokens: args.engine.kv_tokens.unwrap_or(profile.kv_tokens),
        ..profile
    };
    trace.drop_what_exceeds(&profile);
    if trace.requests.is_empty() {
        return Err(bad_flag(format!(
            "none of the {} requests fits an engine whose cache holds {} tokens: give it more with --kv-tokens",
            trace.dropped, profile.kv_tokens
        )));
    }
    if args.sessions.is_closed_loop() && !trace.names_sessions() {
        return Err(unusable(args, NO_SESSIONS));
    }
    let cells = plan(args, profile, configured, faults).cells(&trace);
    Ok(SimulationReport {
        schema: SimulationReport::SCHEMA,
        trace: TraceSummary::of(args.workload.trace.to_string(), &trace),
        profile: profile.name,
        fit: fitted.map(|fitted| fitted.report),
        seed: args.seed,
        cells: cells::run(&trace, &cells),
    })
}

/// Returns the experiments of the flags.
fn plan(
    args: &SimulateArgs,
    profile: Profile,
    mut configured: ConfiguredRouter,
    faults: FaultPlan,
) -> ExperimentPlan {
    if let Some(ms) = args.pace.slo_ttft_ms {
        configured.routing.section.slo.ttft = Some(Duration::from_millis(ms));
    }
    let pace = match (args.sessions.planned(), args.pace.speedup) {
        (Some(closed_loop), _) => closed_loop,
        (None, Some(times)) => PlannedPace::Speedup(times),
        (None, None) if args.pace.load.is_empty() => {
            PlannedPace::Loads(vec![PlannedPace::USUAL_LOAD])
        }
        (None, None) => PlannedPace::Loads(args.pace.load.clone()),
    };
    // The plan replaces the number of engines, the speed and the number of routers.
    let common = Cell {
        cache: configured.cache,
        event_delay: Duration::from_millis(args.events.event_delay_ms),
        event_loss: args.events.event_loss,
        wait: configured.wait,
        engine_priority: configured.engine_priority,
        replicas: ReplicaPlan {
            load_sync: args.replicas.load_sync,
            exchange_delay: Duration::from_millis(args.replicas.exchange_delay_ms),
            exchange_loss: args.replicas.exchange_loss,
            ..ReplicaPlan::default()
        },
        faults,
        seed: args.seed,
        ..Cell::new(configured.routing, 1, TracePace::faster(1.0), profile)
    };
    let common = common.with_fetch(args.engine.fetch_link());
    ExperimentPlan {
        workers: args.workers.clone(),
        pace,
        routers: args.replicas.routers.clone(),
        policies: args.policies.clone(),
        common,
    }
}
