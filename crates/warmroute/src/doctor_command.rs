//! `warmroute doctor`.

use std::time::Duration;

use clap::Args;
use doctor::{
    CheckResult, CheckStatus, ClientKeys, DoctorOptions, DoctorReport, ProbeMode, USUAL_TIMEOUT,
};

use crate::{cli::ServeArgs, exit_code::ExitCode, limits, output, serve, settings, wire_up};

/// Largest `--timeout` per worker, in seconds.
const LONGEST_TIMEOUT_S: u64 = 600;

/// The flags of `serve`, so that a command line is checked by one word in place of the other, and a few of its own.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    /// Print one JSON object on stdout and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Also print what is fine and what was skipped.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Send no requests to the engines: what only they can tell is skipped.
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// Longest time for one worker.
    #[arg(long, value_name = "SECONDS", default_value_t = USUAL_TIMEOUT.as_secs(),
          value_parser = clap::value_parser!(u64).range(1..=LONGEST_TIMEOUT_S))]
    pub(crate) timeout: u64,
}

/// Runs the checks. Exit code 0 if no check failed, 1 if one did, that of `serve` for settings with
/// which it would not start.
pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let settings = match serve::checked(&args.serve) {
        Ok(checked) => checked.settings,
        Err(problems) => {
            if args.json {
                print_json(&doctor::bad_configuration(&problems));
            }
            return settings::refuse(&problems);
        }
    };
    // As `serve` does: a limit that cannot be raised deserves a warning.
    limits::raise_open_files(settings.server.max_connections);
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            output::err(&format!(
                "warmroute doctor: the runtime could not be started: {error}"
            ));
            return ExitCode::FAILURE;
        }
    };
    let tenants = match settings::tenants(&settings, settings::api_key(&args.serve.access)) {
        Ok(tenants) => tenants,
        Err(problems) => return settings::refuse(&problems),
    };
    let keys = ClientKeys {
        required: tenants.table().requires_key(),
        in_arguments: args.serve.access.api_key.is_some(),
    };
    let surroundings = wire_up::surroundings(&settings, keys);
    let options = DoctorOptions {
        probe: if args.no_probe {
            ProbeMode::Nothing
        } else {
            ProbeMode::Send
        },
        timeout: Duration::from_secs(args.timeout),
    };
    let report = runtime.block_on(doctor::diagnose(&settings, &surroundings, options));
    // Loading a tokenizer cannot be cancelled, and its result is not needed any more.
    runtime.shutdown_background();
    if args.json {
        print_json(&report);
    } else {
        print_lines(&report, args.verbose);
    }
    if report.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print_json(report: &DoctorReport) {
    output::out(&serde_json::to_string(report).unwrap_or_default());
}

fn print_lines(report: &DoctorReport, verbose: bool) {
    print_checks("router", &report.checks, verbose);
    for worker in &report.workers {
        print_checks(&worker.name, &worker.checks, verbose);
    }
}

/// Prints one line per check that is not ok, its fix below it, then the count of each status.
fn print_checks(subject: &str, checks: &[CheckResult], verbose: bool) {
    for check in checks {
        if !verbose && matches!(check.status, CheckStatus::Ok | CheckStatus::Skip) {
            continue;
        }
        output::out(&format!(
            "{subject}: {:4} {} {}",
            check.status.as_str(),
            check.id,
            line(check)
        ));
        if let Some(fix) = &check.fix {
            output::out(&format!("    fix: {fix}"));
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let (ok, warn, fail, skip) = (
        count(CheckStatus::Ok),
        count(CheckStatus::Warn),
        count(CheckStatus::Fail),
        count(CheckStatus::Skip),
    );
    output::out(&format!(
        "{subject}: {ok} ok, {warn} to look at, {fail} failed, {skip} skipped"
    ));
}

fn line(check: &CheckResult) -> String {
    match (&check.found, &check.expected) {
        (Some(found), Some(expected)) => {
            format!("(found {found}, expected {expected}): {}", check.message)
        }
        _ => check.message.clone(),
    }
}
