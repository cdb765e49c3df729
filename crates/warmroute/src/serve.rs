//! `warmroute serve`.

use std::{convert::Infallible, sync::Arc, time::Duration};

use admin::Tokens;
use config::{Problem, Settings};
use fleet::WorkerVerdict;
use gateway::DrainResult;
use net::ListenAddr;
use serde_json::json;

use crate::{
    admin_tokens,
    cli::ServeArgs,
    config_search,
    drain::NewConnections,
    encryption,
    examples::{self, Examples},
    exit_code::ExitCode,
    limits,
    live::SourceTexts,
    logging, output, settings,
    signals::{StopSignal, StopSignals},
    wire_up::{self, ListenAddresses, ProcessOwner, RunningRouter, StartOptions},
};

/// Exit code of a drain that had to cut streams.
const CUT_STREAMS: u8 = 3;
/// Time for a change of the configuration that was begun before the end.
const LAST_CHANGE: Duration = Duration::from_secs(1);

/// Checks everything that can be checked before a port is bound, then serves until a signal. `program` is the name
/// under which the user started this program.
pub(crate) fn run(args: &ServeArgs, program: String) -> ExitCode {
    let CheckedStart {
        settings,
        admin_tokens,
        sources,
    } = match checked(args) {
        Ok(checked) => checked,
        Err(problems) => return settings::refuse(&problems),
    };
    logging::start(&settings.logging);
    limits::raise_open_files(settings.server.max_connections);
    limits::forbid_core_files();
    warn_of_ignored_settings(&settings);
    settings::warn_of_no_workers(&settings);
    if settings::api_key(&args.access).is_some() && settings.tenants.lists_keys() {
        tracing::warn!(
            "the key of --api-key, --api-key-file or WARMROUTE_API_KEY is not accepted: tenants.api_keys and tenants.keys_file have the keys of clients"
        );
    }
    if args.access.api_key.is_some() {
        tracing::warn!(
            "the key of --api-key is an argument of the process, which all users of this machine can read: put it into the variable WARMROUTE_API_KEY, or into a file for --api-key-file"
        );
    }
    let tenants = match settings::tenants(&settings, settings::api_key(&args.access)) {
        Ok(tenants) => Arc::new(tenants),
        Err(problems) => return settings::refuse(&problems),
    };
    let messages = StartMessages {
        examples: Examples::of(program, &settings, tenants.table().requires_key()),
        print_ready: args.print_ready,
    };
    let extras = StartOptions {
        tenants,
        admin_tokens,
        on_verdict: Arc::new(|verdict: &WorkerVerdict| output::err(&verdict.to_string())),
        takeover: args.takeover,
        key_in_arguments: args.access.api_key.is_some(),
        owner: ProcessOwner::Router,
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = settings.server.runtime_threads {
        runtime.worker_threads(usize::try_from(threads.get()).unwrap_or(usize::MAX));
    }
    match runtime.enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(serve(settings, sources, extras, messages));
            // Bounded: a change may hang on a file.
            runtime.shutdown_timeout(LAST_CHANGE);
            code
        }
        Err(error) => fail(&format!("the runtime could not be started: {error}")),
    }
}

/// The messages to the user about a start that succeeded.
struct StartMessages {
    examples: Examples,
    /// Whether stdout gets a line with the bound addresses.
    print_ready: bool,
}

/// Checked inputs of a start.
pub(crate) struct CheckedStart {
    pub(crate) settings: Settings,
    pub(crate) admin_tokens: Tokens,
    pub(crate) sources: SourceTexts,
}

/// Returns the sources that the arguments name, checked.
pub(crate) fn checked(args: &ServeArgs) -> Result<CheckedStart, Vec<Problem>> {
    let env = settings::environment();
    let file = match &args.config {
        Some(file) => Some(file.clone()),
        None if settings::names_workers(args, &env) => None,
        None => config_search::announced(&["warmroute", "continuum-router"]),
    };
    let sources = SourceTexts::read(file, env, settings::overrides(args))?;
    check_sources(sources, settings::passwords_in_flags(&args.workers))
}

/// Checks everything that needs no bound port and no query to a worker; `found` are problems that
/// are known already.
pub(crate) fn check_sources(
    mut sources: SourceTexts,
    found: Vec<Problem>,
) -> Result<CheckedStart, Vec<Problem>> {
    let mut settings = sources.settings()?;
    sources.remember(&settings)?;
    settings = sources.settings_with_keys()?;
    let mut problems = model_file_problems(&settings);
    problems.extend(encryption::problems(&settings));
    problems.extend(settings::no_workers(&settings));
    problems.extend(found);
    let admin_tokens = admin_tokens::read(&settings).unwrap_or_else(|more| {
        problems.extend(more);
        Tokens::default()
    });
    if problems.is_empty() {
        Ok(CheckedStart {
            settings,
            admin_tokens,
            sources,
        })
    } else {
        Err(problems)
    }
}

async fn serve(
    settings: Settings,
    sources: SourceTexts,
    extras: StartOptions,
    messages: StartMessages,
) -> ExitCode {
    // Caught before anything is started: a signal during the start must not leave anything behind.
    let mut stops = match StopSignals::catch() {
        Ok(stops) => stops,
        Err(error) => return fail(&format!("signals could not be caught: {error}")),
    };
    let running = match wire_up::start(settings, sources, extras).await {
        Ok(running) => running,
        Err(error) => return fail(&error.to_string()),
    };
    announce(&running, messages.print_ready);
    let mut failed = false;
    let drained = tokio::select! {
        never = show_examples(&running, &messages.examples) => match never {},
        drained = running.handed_over() => drained,
        () = running.failed() => {
            failed = true;
            tracing::error!("the data listener cannot accept connections: requests that run may end, then this process does");
            ended(&running, NewConnections::Refused, &mut stops).await
        }
        stop = stops.next() => {
            tracing::info!("told to stop: a second signal cuts running requests");
            // An interrupt comes from a person at a terminal; no load balancer needs the grace
            // time.
            let refused = stop == StopSignal::Interrupt;
            let new_connections = if refused { NewConnections::Refused } else { NewConnections::Served };
            ended(&running, new_connections, &mut stops).await
        }
    };
    running.stop().await;
    if drained.cut > 0 {
        tracing::warn!(cut_streams = drained.cut, "stopped with requests running");
    }
    if failed {
        tracing::error!("the data listener failed: exit code 1, start the router again");
        return ExitCode::FAILURE;
    }
    if drained.cut == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(CUT_STREAMS)
    }
}

async fn ended(
    running: &RunningRouter,
    new_connections: NewConnections,
    stops: &mut StopSignals,
) -> DrainResult {
    tokio::select! {
        drained = running.drain(new_connections) => drained,
        _ = stops.next() => running.cut_now().await,
    }
}

/// Prints commands to try the router with, once every worker has had its first verdict: then its
/// models are known.
async fn show_examples(running: &RunningRouter, examples: &Examples) -> Infallible {
    running.fleet.first_verdicts().await;
    let snapshot = running.fleet.snapshot();
    let addresses = &running.addresses;
    if let (Some(data), Some(admin)) = (&addresses.data, &addresses.admin) {
        for command in examples.commands(data, admin, examples::model(&snapshot)) {
            output::err(&command);
        }
    }
    std::future::pending().await
}

fn announce(running: &RunningRouter, print_ready: bool) {
    let ListenAddresses {
        data,
        also,
        admin,
        metrics,
    } = &running.addresses;
    let shown = |address: &Option<ListenAddr>| address.as_ref().map(ToString::to_string);
    let (data, admin, metrics) = (shown(data), shown(admin), shown(metrics));
    tracing::info!(data, admin, metrics, "listening");
    if print_ready {
        let line = json!({
            "event": "listening",
            "role": "serve",
            "data": data,
            "admin": admin,
            "pid": std::process::id(),
            "also": also.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "probe": running.probes.lock().as_ref().map(|probes| probes.address.to_string()),
            "metrics": metrics,
        });
        output::announce(&line.to_string());
    }
}

/// Returns problems of configured tokenizers and templates: they are used or refused, never
/// silently left out.
fn model_file_problems(settings: &Settings) -> Vec<Problem> {
    let bad = fleet::artefacts::check_models(&settings.models).into_iter();
    bad.map(|bad| {
        let problem = Problem::bad_value(
            &bad.key,
            &bad.path.display().to_string(),
            &bad.error.to_string(),
        );
        settings.locate(problem)
    })
    .collect()
}

/// Warns of settings without effect beside the others, one line each: their author must not assume
/// that all of them are in force.
fn warn_of_ignored_settings(settings: &Settings) {
    for ignored in settings.ignored_keys() {
        tracing::warn!(
            key = ignored.path,
            value = %ignored.value,
            policy = %settings.routing.policy(),
            "{ignored}"
        );
    }
}

fn fail(message: &str) -> ExitCode {
    output::err(&format!("warmroute: {message}"));
    ExitCode::FAILURE
}
