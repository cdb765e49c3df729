//! `warmroute demo`: simulated engines, the router, and the same multi-turn workload under two
//! policies.
//!
//! Engines, router and clients run in this one process over real sockets on free ports, and end
//! with it.

mod client;
mod cluster;
mod explained;
mod result;
mod round;
#[cfg(test)]
mod tests;
mod workload;

use std::{io::IsTerminal, time::Duration};

use net::Clock;
use routing::Policy;

use self::result::{DemoReport, RunCounters};
use crate::{cli::DemoArgs, exit_code::ExitCode, output, signals::StopSignals};

/// Output during the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DemoOutput {
    /// A progress line that rewrites itself, and reasons.
    Terminal,
    /// One line per stage, and reasons.
    Plain,
    /// Nothing: stdout gets one JSON object at the end.
    Silent,
}

pub(crate) fn run(args: &DemoArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    runtime.block_on(until_stopped(args))
}

async fn until_stopped(args: &DemoArgs) -> ExitCode {
    let mut stops = match StopSignals::catch() {
        Ok(stops) => stops,
        Err(error) => return fail(&error.into()),
    };
    // This future owns everything the demo starts: dropping it on a signal ends engines, router and
    // clients.
    tokio::select! {
        result = rounds(args) => match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        stop = stops.next() => ExitCode::from(stop.exit_code()),
    }
}

async fn rounds(args: &DemoArgs) -> anyhow::Result<()> {
    let output = match (args.json, std::io::stderr().is_terminal()) {
        (true, _) => DemoOutput::Silent,
        (false, true) => DemoOutput::Terminal,
        (false, false) => DemoOutput::Plain,
    };
    let clock = Clock::system();
    let started = clock.now();
    let (mut round_robin, mut warm) = (RunCounters::default(), RunCounters::default());
    for n in 0.. {
        let seed = args.seed.wrapping_add(n);
        round_robin.add(round::run(args.workers, seed, Policy::RoundRobin, output).await?);
        warm.add(round::run(args.workers, seed, Policy::Warm, output).await?);
        let report = DemoReport::new(args.seed, args.workers, &round_robin, &warm);
        let over = match args.seconds {
            Some(seconds) => clock.now().since(started) >= Duration::from_secs(seconds),
            None => false,
        };
        let last = args.once || over;
        if output != DemoOutput::Silent {
            output::out(&report.table());
        } else if last {
            output::out(&serde_json::to_string(&report)?);
        }
        if last {
            return Ok(());
        }
    }
    Ok(())
}

fn fail(error: &anyhow::Error) -> ExitCode {
    output::err(&format!("warmroute demo: {error:#}"));
    ExitCode::FAILURE
}
