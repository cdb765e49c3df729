//! `warmroute indexer`: the Conductor API alone, for registered publishers.

use std::{path::PathBuf, sync::Arc};

use admin::{Access, AuditFileError, ProtectedListener, Tokens};
use clap::Args;
use config::{Override, Problem, Settings};
use indexer::{Indexer, IndexerParts, ResidentInstances};
use kv_index::{IndexSettings, KvIndex};
use net::{Clock, Destinations, HttpProtocols, ListenError};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    admin_tokens,
    encryption::{self, EncryptionError},
    exit_code::ExitCode,
    from_settings, limits, logging, output,
    setting_flags::LoggingArgs,
    settings,
    signals::StopSignals,
    wire_up,
};

/// Default listen address: the port that Conductor's clients know.
const USUAL_PLACE: &str = "127.0.0.1:13333";

#[derive(Args, Debug)]
#[command(
    after_help = "Publishers come by POST /register and go by POST /unregister; POST /query and /query_by_hash say what each \
                  holds; GET /services and /global_view show all of it."
)]
pub(crate) struct IndexerArgs {
    /// Configuration file (YAML), of which `admin.token_file`, `admin.tokens`, `admin.audit_log`, `admin.tls`, `kv_events.block_hash`,
    /// `kv_events.block_hash_seed`, `kv_events.memory_budget` and `logging` count.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients connect; port 0 takes any free one. Beyond this machine a token is needed.
    #[arg(long, value_name = "ADDR", default_value = USUAL_PLACE)]
    listen: String,
    /// File that holds the token that clients must send: `Authorization: Bearer TOKEN`.
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// Memory for what is known of caches [default: 512MiB].
    #[arg(long, value_name = "SIZE")]
    memory_budget: Option<String>,
    /// Print one JSON line with the bound address on stdout.
    #[arg(long)]
    print_ready: bool,
    #[command(flatten)]
    logging: LoggingArgs,
}

/// The reason why the indexer does not start.
#[derive(Debug, thiserror::Error)]
enum IndexerStartError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("admin.tls: {0}")]
    Identity(#[from] EncryptionError),
    #[error(transparent)]
    Audit(#[from] AuditFileError),
}

/// Serves until a signal.
pub(crate) fn run(args: &IndexerArgs) -> ExitCode {
    let (settings, tokens) = match checked(args) {
        Ok(checked) => checked,
        Err(problems) => return settings::refuse(&problems),
    };
    logging::start(&settings.logging);
    limits::raise_open_files(settings.server.max_connections);
    limits::forbid_core_files();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("the runtime could not be started: {error}")),
    };
    match runtime.block_on(until_signal(&settings, tokens, args.print_ready)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string()),
    }
}

fn checked(args: &IndexerArgs) -> Result<(Settings, Tokens), Vec<Problem>> {
    let settings = settings::load(
        args.config.as_deref(),
        settings::environment(),
        &overrides(args),
    )?;
    let tokens = admin_tokens::read(&settings)?;
    Ok((settings, tokens))
}

fn overrides(args: &IndexerArgs) -> Vec<Override> {
    let one = |path: &str, value: String, flag: &str| Override {
        path: path.to_owned(),
        value,
        flag: flag.to_owned(),
    };
    let mut set = vec![one("admin.listen", args.listen.clone(), "--listen")];
    let token_file = args
        .admin_token_file
        .as_ref()
        .map(|path| path.display().to_string());
    for (path, value, flag) in [
        ("admin.token_file", &token_file, "--admin-token-file"),
        (
            "kv_events.memory_budget",
            &args.memory_budget,
            "--memory-budget",
        ),
    ] {
        set.extend(value.clone().map(|value| one(path, value, flag)));
    }
    set.extend(args.logging.overrides());
    set
}

async fn until_signal(
    settings: &Settings,
    tokens: Tokens,
    print_ready: bool,
) -> Result<(), IndexerStartError> {
    let tls = encryption::identity(settings.admin.tls.as_ref(), HttpProtocols::Http1)?;
    // Caught before anything is started: a signal during the start must not leave anything behind.
    let stops = StopSignals::catch();
    let listener =
        net::listen(&from_settings::address(&settings.admin.listen).chosen_by("--listen")).await?;
    let listener = encryption::encrypted(listener, tls.as_ref());
    announce(&listener.address().to_string(), print_ready);
    let scheme = settings.kv_events.hash_scheme();
    let indexer = Indexer::start(IndexerParts {
        index: Arc::new(KvIndex::new(IndexSettings {
            scheme,
            memory_budget: settings.kv_events.memory_budget,
            secret: runtime::random(),
            ..IndexSettings::default()
        })),
        scheme,
        clock: Clock::system(),
        destinations: Destinations::engines(&settings.discovery.allowed_networks),
        residents: ResidentInstances::none(),
    });
    let access = Access {
        tokens,
        loopback: settings.admin.listen.is_local(),
        wrong_tokens: Arc::default(),
        clock: Clock::system(),
        audit: wire_up::audit_sinks(&settings.admin)?,
    };
    let (stop, stopped) = watch::channel(false);
    let served = runtime::spawn(admin::serve_routes(
        indexer::stand_alone(indexer),
        ProtectedListener {
            listener: Arc::new(listener),
            access,
        },
        stopped,
    ));
    match stops {
        Ok(mut stops) => drop(stops.next().await),
        Err(_) => std::future::pending().await,
    }
    stop.send_replace(true);
    let _ = served.await;
    Ok(())
}

fn announce(address: &str, print_ready: bool) {
    tracing::info!(address, "listening");
    if print_ready {
        let pid = std::process::id();
        let line = json!({"event": "listening", "role": "indexer", "data": address, "admin": null, "pid": pid});
        output::announce(&line.to_string());
    }
}

fn fail(message: &str) -> ExitCode {
    output::err(&format!("warmroute indexer: {message}"));
    ExitCode::FAILURE
}
