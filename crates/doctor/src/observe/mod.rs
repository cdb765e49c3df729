//! Observes one worker, or the other replicas. This module only queries; `checks` interprets the
//! observations.

mod address;
mod announcements;
mod budget;
#[cfg(feature = "nats")]
mod bus;
mod engine_client;
mod event_listener;
mod further_probes;
mod probe_reply;
mod prober;
mod probes;
mod publisher_binding;
mod publisher_observation;
mod recording_sink;
mod replays;
mod replicas;
mod request;
mod session;
mod token_case;
mod token_samples;
mod tokenize_probe;
mod tokens;

#[cfg(test)]
mod other_traffic;

use std::{future::Future, time::Duration};

use fleet::{EventEndpoint, TrustCache, WorkerProbe};
use net::{Clock, WorkerUrl};
use tokio::time::Instant;

pub(crate) use address::PortOccupant;
pub(crate) use announcements::AnnouncedBlocks;
pub(crate) use budget::Budget;
#[cfg(feature = "nats")]
pub(crate) use bus::{BusFacts, BusFailure, BusObservation};
pub(crate) use engine_client::EngineClient;
pub(crate) use event_listener::StreamObservation;
pub(crate) use probe_reply::ProbeReply;
pub(crate) use prober::PromptForm;
pub(crate) use probes::{OwnPrompt, ProbeOutcome, ProbeResults};
pub(crate) use publisher_binding::PublisherBinding;
#[cfg(test)]
pub(crate) use publisher_observation::BatchNumbers;
pub(crate) use publisher_observation::{LinkStatus, PublisherObservation};
pub(crate) use replays::{ReplayAnswer, ReplayObservation};
pub(crate) use replicas::ReplicaObservation;
pub(crate) use request::ObservationRequest;
pub(crate) use session::ProbeSession;
pub(crate) use token_case::{EngineTokenization, TokenCase, TokenComparison, first_difference};

use crate::{
    ProbeMode,
    observe::{event_listener::EventListener, prober::Prober},
};

/// Most publishers followed per worker; further ranks are assumed to be like the first ones.
const MOST_LISTENERS: usize = 16;

/// All observations of one worker, as far as they were made.
#[derive(Debug, Default)]
pub(crate) struct WorkerObservation {
    /// Reason why no connection can be opened; `None` means reachable.
    pub(crate) unreachable: Option<String>,
    /// Result of its health check.
    pub(crate) health: Option<Result<(), String>>,
    /// Result of the probe.
    pub(crate) probe: Option<Result<WorkerProbe, String>>,
    /// Service found at the address if it is not an engine.
    pub(crate) instead: Option<PortOccupant>,
    /// Bind addresses that its publishers report.
    pub(crate) bound: Vec<PublisherBinding>,
    /// Its token ids compared with ours.
    pub(crate) tokens: TokenComparison,
    /// Its event streams.
    pub(crate) streams: Vec<StreamObservation>,
    /// Results of our own requests.
    pub(crate) probes: ProbeResults,
    /// Its replay sockets.
    pub(crate) replays: Vec<ReplayObservation>,
}

/// Observes one worker, for at most `timeout`. The time starts when its turn comes.
pub(crate) async fn observe(
    request: ObservationRequest<'_>,
    timeout: Duration,
    clock: Clock,
) -> WorkerObservation {
    let ObservationRequest {
        settings,
        worker,
        probe,
        ..
    } = request;
    let mut budget = Budget::of(timeout);
    let mut seen = WorkerObservation::default();
    let url = match reach(&request, budget).await {
        Ok(url) => url,
        Err(reason) => {
            seen.unreachable = Some(reason);
            return seen;
        }
    };
    let engine = EngineClient::new(
        url.clone(),
        worker.engine.unwrap_or(fleet::EngineKind::Generic),
        worker.api_key.as_ref(),
    );
    // On the heap: a whole probe is part of it.
    let (health, worker_probe) = Box::pin(check_and_probe(&request, &mut budget)).await;
    (seen.health, seen.probe) = (Some(health), Some(worker_probe));
    let Some(Ok(worker_probe)) = &seen.probe else {
        seen.instead = address::identify_service(&engine, &url, budget).await;
        return seen;
    };
    if worker_probe.announced.iter().flatten().next().is_some() {
        seen.bound = publisher_binding::query(&engine, budget).await;
    }

    let destinations = url.destinations();
    let session = ProbeSession {
        worker_probe,
        destinations: &destinations,
        budget,
        clock,
    };
    let mut listeners: Vec<EventListener> = endpoints(worker_probe)
        .into_iter()
        .map(|(endpoint, followed)| EventListener::open(endpoint, followed, settings, session))
        .collect();
    seen.tokens = tokens::compare(&engine, session, probe).await;
    for listener in &mut listeners {
        listener.wait_connected(budget.at_most(budget.events)).await;
    }
    let tokenizes = seen.tokens.has_route == Some(true);
    let mut prober = Prober::new(
        &engine,
        session,
        tokenizes,
        probes::first_rank(worker_probe),
    );
    if probe == ProbeMode::Send {
        seen.probes = probes::begin(&mut prober, request, &listeners).await;
    }
    // Runs before the further requests, so that the time they use is not missing here.
    seen.replays = replays::query(&listeners, settings, budget).await;
    further_probes::send_further(&mut seen.probes, &prober, &listeners).await;
    seen.streams = listeners.into_iter().map(EventListener::close).collect();
    seen
}

/// Returns the worker's address, once a connection to it was opened.
async fn reach(request: &ObservationRequest<'_>, budget: Budget) -> Result<WorkerUrl, String> {
    let worker = request.worker;
    let url = worker
        .url
        .parse::<WorkerUrl>()
        .map_err(|error| error.to_string())?;
    let networks = &request.settings.discovery.allowed_networks;
    let url = url.only_at(fleet::permitted_addresses(worker, networks));
    let url = TrustCache::default()
        .attach(url, &worker.tls)
        .map_err(|error| error.to_string())?;
    let limit = budget.at_most(request.settings.request.connect_timeout);
    match net::dial(&url, limit).await {
        Ok(_) => Ok(url),
        Err(error) => Err(error.to_string()),
    }
}

/// Checks the worker's health and probes it.
async fn check_and_probe(
    request: &ObservationRequest<'_>,
    budget: &mut Budget,
) -> (Result<(), String>, Result<WorkerProbe, String>) {
    let (prober, id) = (request.prober, request.id);
    let started = Instant::now();
    let results = tokio::join!(
        within(budget.at_most(budget.request), prober.health(id)),
        // Its requests have that limit; loading a tokenizer, which is part of it, is not limited.
        prober.probe(id, budget.at_most(budget.request)),
    );
    budget.give_back(started.elapsed());
    results
}

/// Returns the publishers to follow: those that the router would follow, and those announced
/// elsewhere.
fn endpoints(worker_probe: &WorkerProbe) -> Vec<(EventEndpoint, bool)> {
    let followed = worker_probe
        .streams
        .iter()
        .map(|endpoint| (endpoint.clone(), true));
    let elsewhere = worker_probe.announced.iter().flatten().filter(|announced| {
        worker_probe
            .streams
            .iter()
            .all(|followed| followed.endpoint != announced.endpoint)
    });
    followed
        .chain(elsewhere.map(|endpoint| (endpoint.clone(), false)))
        .take(MOST_LISTENERS)
        .collect()
}

async fn within<T>(
    limit: Duration,
    future: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    tokio::time::timeout(limit, future)
        .await
        .unwrap_or_else(|_| {
            Err(format!(
                "gave no answer within {limit:.1?}: look at the engine's log"
            ))
        })
}
