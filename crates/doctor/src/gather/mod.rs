//! What is seen at one worker. Only asking happens here; what it means is said by `judge`.

mod address;
mod ask;
mod bound;
mod ear;
mod hearing;
mod prober;
mod probes;
mod replays;
mod tokens;

#[cfg(test)]
mod overheard;

use std::{future::Future, time::Duration};

use config::Settings;
use fleet::{EventEndpoint, Meeting, Meetings, Trusts};
use kv_blocks::WorkerId;
use net::{Clock, WorkerUrl};
use tokio::time::Instant;

pub(crate) use address::Answers;
pub(crate) use ask::Engine;
pub(crate) use bound::Bound;
pub(crate) use ear::{Heard, Link};
pub(crate) use hearing::Arrival;
pub(crate) use prober::{Form, Reply};
pub(crate) use probes::{Outcome, OwnPrompt, Probes};
pub(crate) use replays::{ReplayAnswer, ReplaySeen};
pub(crate) use tokens::{Case, EngineSays, TokensSeen, first_difference};

use crate::{
    Probe,
    gather::{ear::Ear, prober::Prober},
};

/// Why something was not asked any more.
const NO_TIME: &str = "no time was left: allow more with --timeout";

/// Publishers listened to per worker at most; further ranks are taken to be like the first ones.
const MOST_EARS: usize = 16;

/// Everything seen at one worker, as far as the looking came.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// Whether a connection can be opened; `None` stands for yes.
    pub(crate) unreachable: Option<String>,
    /// Its health check.
    pub(crate) health: Option<Result<(), String>>,
    /// Who it says it is.
    pub(crate) meeting: Option<Result<Meeting, String>>,
    /// What answers there instead, where nobody said who it is.
    pub(crate) instead: Option<Answers>,
    /// Where its publishers are bound, as it says.
    pub(crate) bound: Vec<Bound>,
    /// Its token ids beside ours.
    pub(crate) tokens: TokensSeen,
    /// Its event sockets.
    pub(crate) streams: Vec<StreamSeen>,
    /// What our own requests showed.
    pub(crate) probes: Probes,
    /// Its replay sockets.
    pub(crate) replays: Vec<ReplaySeen>,
}

/// One publisher.
#[derive(Debug)]
pub(crate) struct StreamSeen {
    pub(crate) place: EventEndpoint,
    /// The router would follow it; else the engine announces it and the configuration says otherwise.
    pub(crate) followed: bool,
    pub(crate) heard: Heard,
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    until: Instant,
    /// One request, or one answer.
    pub(crate) request: Duration,
    /// Until a batch of events has come.
    pub(crate) events: Duration,
    /// The same for the first one: late events are another finding than none.
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

    /// Too little is left for another question.
    pub(crate) fn is_spent(&self) -> bool {
        self.left() < self.request / 10
    }

    /// Gives back what took `took` though it asks nobody, beyond one question's time.
    fn give_back(&mut self, took: Duration) {
        self.until += took.saturating_sub(self.request);
    }

    /// What is left of it all.
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// What is left, and no more than `most`.
    pub(crate) fn at_most(&self, most: Duration) -> Duration {
        self.left().min(most)
    }
}

/// Which worker is looked at, and how.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) worker: &'a config::Worker,
    pub(crate) id: WorkerId,
    pub(crate) meetings: &'a Meetings,
    pub(crate) probe: Probe,
}

/// Looks at one worker, for at most `timeout`. The time begins when its turn has come.
pub(crate) async fn look(asked: Asked<'_>, timeout: Duration, clock: Clock) -> Observed {
    let Asked {
        settings,
        worker,
        id,
        meetings,
        probe,
    } = asked;
    let mut budget = Budget::of(timeout);
    let mut seen = Observed::default();
    let url = match worker.url.parse::<WorkerUrl>() {
        Ok(url) => url,
        Err(error) => {
            return Observed {
                unreachable: Some(error.to_string()),
                ..seen
            };
        }
    };
    let url = match Trusts::default().attach(url, &worker.tls) {
        Ok(url) => url,
        Err(error) => {
            return Observed {
                unreachable: Some(error.to_string()),
                ..seen
            };
        }
    };
    if let Err(error) = net::dial(&url, budget.at_most(settings.request.connect_timeout)).await {
        return Observed {
            unreachable: Some(error.to_string()),
            ..seen
        };
    }
    let engine = Engine::new(
        url.clone(),
        worker.engine.unwrap_or(fleet::Engine::Generic),
        worker.api_key.as_ref(),
    );
    let met_at = Instant::now();
    let (health, meeting) = tokio::join!(
        within(budget.at_most(budget.request), meetings.health(id)),
        // Its questions have that limit; loading a tokenizer, which is part of it, takes what it takes.
        meetings.meet(id, budget.at_most(budget.request)),
    );
    budget.give_back(met_at.elapsed());
    (seen.health, seen.meeting) = (Some(health), Some(meeting));
    let Some(Ok(meeting)) = &seen.meeting else {
        seen.instead = address::look(&engine, &url, budget).await;
        return seen;
    };
    if meeting
        .announced
        .as_ref()
        .is_some_and(|announced| !announced.is_empty())
    {
        seen.bound = bound::ask(&engine, budget).await;
    }

    let mut ears: Vec<Ear> = places(meeting)
        .into_iter()
        .map(|(place, followed)| Ear::open(place, followed, meeting, settings, budget, clock))
        .collect();
    seen.tokens = tokens::compare(&engine, meeting, probe, budget, clock).await;
    for ear in &mut ears {
        ear.settled(budget.at_most(budget.events)).await;
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
    if probe == Probe::Send {
        seen.probes = probes::begin(&mut prober, asked, meeting, &ears, budget).await;
    }
    // Before the other requests: what they take must not be missing here.
    seen.replays = replays::ask(&ears, settings, budget).await;
    probes::go_on(&mut seen.probes, &prober, meeting, &ears, budget).await;
    seen.streams = ears.into_iter().map(Ear::close).collect();
    seen
}

/// The publishers to listen to: those that would be followed, and those that are announced elsewhere.
fn places(meeting: &Meeting) -> Vec<(EventEndpoint, bool)> {
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
