//! Observes one worker. This module only queries; `checks` interprets the observations.

mod address;
mod announcements;
mod engine_client;
mod event_listener;
mod prober;
mod probes;
mod publisher_binding;
mod replays;
mod tokens;

#[cfg(test)]
mod other_traffic;

use std::{future::Future, time::Duration};

use config::Settings;
use fleet::{EventEndpoint, TrustCache, WorkerProbe, WorkerProber};
use kv_blocks::WorkerId;
use net::{Clock, WorkerUrl};
use tokio::time::Instant;

pub(crate) use address::PortOccupant;
pub(crate) use announcements::AnnouncedBlocks;
pub(crate) use engine_client::EngineClient;
pub(crate) use event_listener::{LinkStatus, PublisherObservation};
pub(crate) use prober::{ProbeReply, PromptForm};
pub(crate) use probes::{OwnPrompt, ProbeOutcome, ProbeResults};
pub(crate) use publisher_binding::PublisherBinding;
pub(crate) use replays::{ReplayAnswer, ReplayObservation};
pub(crate) use tokens::{EngineTokenization, TokenCase, TokenComparison, first_difference};

use crate::{
    ProbeMode,
    observe::{event_listener::EventListener, prober::Prober},
};

/// Reason given for a skipped query.
const NO_TIME: &str = "no time was left: allow more with --timeout";

/// Most publishers followed per worker; further ranks are assumed to be like the first ones.
const MOST_EARS: usize = 16;

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

/// Observation of one publisher.
#[derive(Debug)]
pub(crate) struct StreamObservation {
    pub(crate) endpoint: EventEndpoint,
    /// Whether the router would follow it; otherwise only the engine announces it.
    pub(crate) followed: bool,
    pub(crate) heard: PublisherObservation,
}

/// Time limits of an observation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    until: Instant,
    /// Limit for one request or reply.
    pub(crate) request: Duration,
    /// Limit for the arrival of a batch of events.
    pub(crate) events: Duration,
    /// Limit for the first batch: late events are a different finding than none.
    pub(crate) late_events: Duration,
}

impl Budget {
    pub(crate) fn of(whole: Duration) -> Self {
        Self {
            until: Instant::now() + whole,
            request: whole / 3,
            events: whole / 6,
            late_events: whole * 2 / 5,
        }
    }

    /// Returns whether too little time is left for another query.
    pub(crate) fn is_spent(&self) -> bool {
        self.left() < self.request / 10
    }

    /// Gives back the part of `took` beyond one query's time, for work that queries no worker.
    fn give_back(&mut self, took: Duration) {
        self.until += took.saturating_sub(self.request);
    }

    /// Returns the remaining time.
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Returns the remaining time, at most `most`.
    pub(crate) fn at_most(&self, most: Duration) -> Duration {
        self.left().min(most)
    }
}

/// The worker to observe, and how.
#[derive(Clone, Copy)]
pub(crate) struct ObservationRequest<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) worker: &'a config::WorkerEntry,
    pub(crate) id: WorkerId,
    pub(crate) meetings: &'a WorkerProber,
    pub(crate) probe: ProbeMode,
}

/// Observes one worker, for at most `timeout`. The time starts when its turn comes.
pub(crate) async fn observe(
    asked: ObservationRequest<'_>,
    timeout: Duration,
    clock: Clock,
) -> WorkerObservation {
    let ObservationRequest {
        settings,
        worker,
        id,
        meetings,
        probe,
    } = asked;
    let mut budget = Budget::of(timeout);
    let mut seen = WorkerObservation::default();
    let url = match worker.url.parse::<WorkerUrl>() {
        Ok(url) => url,
        Err(error) => {
            return WorkerObservation {
                unreachable: Some(error.to_string()),
                ..seen
            };
        }
    };
    let url = match TrustCache::default().attach(url, &worker.tls) {
        Ok(url) => url,
        Err(error) => {
            return WorkerObservation {
                unreachable: Some(error.to_string()),
                ..seen
            };
        }
    };
    if let Err(error) = net::dial(&url, budget.at_most(settings.request.connect_timeout)).await {
        return WorkerObservation {
            unreachable: Some(error.to_string()),
            ..seen
        };
    }
    let engine = EngineClient::new(
        url.clone(),
        worker.engine.unwrap_or(fleet::EngineKind::Generic),
        worker.api_key.as_ref(),
    );
    let met_at = Instant::now();
    let (health, meeting) = tokio::join!(
        within(budget.at_most(budget.request), meetings.health(id)),
        // Its requests have that limit; loading a tokenizer, which is part of it, is not limited.
        meetings.probe(id, budget.at_most(budget.request)),
    );
    budget.give_back(met_at.elapsed());
    (seen.health, seen.probe) = (Some(health), Some(meeting));
    let Some(Ok(meeting)) = &seen.probe else {
        seen.instead = address::identify_service(&engine, &url, budget).await;
        return seen;
    };
    if meeting
        .announced
        .as_ref()
        .is_some_and(|announced| !announced.is_empty())
    {
        seen.bound = publisher_binding::query(&engine, budget).await;
    }

    let mut ears: Vec<EventListener> = places(meeting)
        .into_iter()
        .map(|(place, followed)| {
            EventListener::open(place, followed, meeting, settings, budget, clock)
        })
        .collect();
    seen.tokens = tokens::compare(&engine, meeting, probe, budget, clock).await;
    for ear in &mut ears {
        ear.wait_connected(budget.at_most(budget.events)).await;
    }
    let tokenizes = seen.tokens.has_route == Some(true);
    let mut prober = Prober::new(
        &engine,
        meeting,
        tokenizes,
        probes::first_rank(meeting),
        budget,
        clock,
    );
    if probe == ProbeMode::Send {
        seen.probes = probes::begin(&mut prober, asked, meeting, &ears, budget).await;
    }
    // Runs before the further requests, so that the time they use is not missing here.
    seen.replays = replays::query(&ears, settings, budget).await;
    probes::send_further(&mut seen.probes, &prober, meeting, &ears, budget).await;
    seen.streams = ears.into_iter().map(EventListener::close).collect();
    seen
}

/// Returns the publishers to follow: those that the router would follow, and those announced
/// elsewhere.
fn places(meeting: &WorkerProbe) -> Vec<(EventEndpoint, bool)> {
    let followed = meeting.streams.iter().map(|place| (place.clone(), true));
    let elsewhere = meeting.announced.iter().flatten().filter(|announced| {
        meeting
            .streams
            .iter()
            .all(|followed| followed.endpoint != announced.endpoint)
    });
    followed
        .chain(elsewhere.map(|place| (place.clone(), false)))
        .take(MOST_EARS)
        .collect()
}

async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    tokio::time::timeout(limit, asked)
        .await
        .unwrap_or_else(|_| {
            Err(format!(
                "gave no answer within {limit:.1?}: look at the engine's log"
            ))
        })
}
