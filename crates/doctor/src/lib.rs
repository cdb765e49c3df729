//! Checks before traffic: whether router and engines agree on everything that cache hits depend on.
//!
//! `observe` queries: the NATS server or the peers that replicas share with; the same probes as the
//! router's own supervisors (`fleet`), the engine's `/tokenize`, its event sockets, and a few
//! one-token requests with prompts of our own. `checks` is pure: it turns observations into one
//! [`CheckResult`] per id, each failure with its fix. A run changes nothing, on either side, beyond
//! a few blocks in the engines' caches.
//!
//! **Invariant**: every check of the documented list is in every report, in its order; a check that
//! could not be made is `skip` with its reason, never `ok`. The consequences of a failed check are
//! skipped, so that one wrong setting is one failure. Every wait has an end.

mod checks;
mod environment;
mod observe;
mod report;

use std::{sync::Arc, time::Duration};

use config::{Problem, Settings};
use fleet::{FleetConfig, FleetParts, WorkerProber};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use kv_blocks::{HashScheme, WorkerId};
use kv_index::{IndexSettings, KvIndex};
use net::Clock;

pub use api::{CheckResult, CheckStatus, DoctorReport, WorkerChecks};
pub use environment::{ClientKeys, Environment, FileLimit};
pub use report::{bad_configuration, without_answers};

use crate::observe::{ReplicaObservation, WorkerObservation};

/// Workers observed at the same time; the others wait their turn.
const AT_ONCE: usize = 8;

/// Whether the run may send requests to the engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeMode {
    /// A few one-token requests per worker, with unique prompts.
    Send,
    /// None: checks that need them are skipped.
    Nothing,
}

/// Default time per worker: enough for a healthy worker on a slow machine.
pub const USUAL_TIMEOUT: Duration = Duration::from_secs(15);

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct DoctorOptions {
    /// Whether the run may send requests.
    pub probe: ProbeMode,
    /// Longest time for one worker, and for the NATS server.
    pub timeout: Duration,
}

/// Checks a configuration and every worker in it. Never fails: problems go into the report.
pub async fn diagnose(
    settings: &Settings,
    environment: &Environment,
    options: DoctorOptions,
) -> DoctorReport {
    let clock = Clock::system();
    let prober = match WorkerProber::new(parts(settings, environment, clock)) {
        Ok(prober) => prober,
        Err(error) => {
            return bad_configuration(&[Problem::bad_value("workers", "", &error.to_string())]);
        }
    };
    let observations: Vec<BoxFuture<'_, WorkerObservation>> = (0u32..)
        .zip(&settings.workers)
        .map(|(at, worker)| {
            let request = observe::ObservationRequest {
                settings,
                worker,
                id: WorkerId(at),
                prober: &prober,
                probe: options.probe,
            };
            observe::observe(request, options.timeout, clock).boxed()
        })
        .collect();
    let observed = stream::iter(observations).buffered(AT_ONCE).collect();
    let (observed, replicas): (Vec<WorkerObservation>, _) = tokio::join!(
        observed,
        ReplicaObservation::of(settings, environment, options.timeout)
    );
    let checks = checks::router(settings, environment, &replicas);
    let workers = checks::workers(settings, &observed);
    report::report(checks, workers)
}

fn parts(settings: &Settings, environment: &Environment, clock: Clock) -> FleetParts {
    FleetParts {
        config: FleetConfig::of(settings),
        models: settings.models.clone(),
        kv_cache_index: settings.kv_cache_index.clone(),
        redis: None,
        max_prefix_length: settings.prefix_routing.max_prefix_length,
        hub_cache: environment.hub_cache.clone(),
        // Probing follows no stream: nothing is ever put into this index.
        index: Arc::new(KvIndex::new(IndexSettings::default())),
        scheme: SCHEME,
        earlier: Vec::new(),
        clock,
        on_verdict: Arc::new(|_| {}),
    }
}

/// Blocks are compared within one run only, so any scheme works.
const SCHEME: HashScheme = HashScheme::Xxh3 { seed: 1337 };
