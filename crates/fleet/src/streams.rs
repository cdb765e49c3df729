//! Which event streams a worker has, and keeping them running.
//!
//! Where a stream is, in order of trust: the worker's own configuration, what the engine announces, and last the
//! default port, if something listens there and no other worker shares the host (two engines on one machine would
//! both be credited with the events of whichever has that port).

use std::{str::FromStr, sync::Arc, time::Duration};

use config::{EventSource, ReplayEndpoint};
use event_sources::{Endpoint, EventDefaults, SourceSettings, SourceSpec, ZmqSource};
use kv_blocks::{DpRank, Moment, Target, WorkerId};
use net::Address;
use tokio::sync::watch;
use tracing::{error, warn};
use zmtp::{Dealer, Limits};

use crate::{
    board::Board,
    entry::{Entry, RankStream},
    probe::event_endpoints::{self, EventEndpoint},
};

/// A replay without a message for this long has failed: an idle engine answers within about 0.1 s.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest handshake with a socket that is only guessed at.
const GUESS_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause before a stream that could not be started, or that ended by itself, is started again.
const RETRY: Duration = Duration::from_secs(2);

/// What decides where a worker's streams are.
#[derive(Clone, Debug)]
pub(crate) struct StreamSettings {
    pub(crate) own: config::WorkerKvEvents,
    pub(crate) all: config::KvEvents,
    /// No other worker has the same host.
    pub(crate) host_is_its_own: bool,
}

impl StreamSettings {
    /// Whether events are wanted of this worker.
    pub(crate) fn wanted(&self) -> bool {
        self.all.enabled && self.own.source != EventSource::None
    }

    /// The streams of a worker with this many ranks. `host` is the worker's, as we reach it.
    pub(crate) async fn find(
        &self,
        announced: Option<&[EventEndpoint]>,
        host: &str,
        ranks: u32,
        connect_timeout: Duration,
    ) -> Vec<EventEndpoint> {
        if !self.wanted() {
            return Vec::new();
        }
        let mut found = match (&self.own.endpoint, announced) {
            (Some(endpoint), _) => self.configured(endpoint, announced, host, ranks, connect_timeout).await,
            (None, Some(announced)) => announced.to_vec(),
            (None, None) if self.host_is_its_own => self.guessed(host, ranks, connect_timeout).await,
            (None, None) => Vec::new(),
        };
        found.retain(|stream| stream.rank < ranks);
        for stream in &mut found {
            match &self.own.replay_endpoint {
                _ if !self.all.replay => stream.replay_endpoint = None,
                ReplayEndpoint::None => stream.replay_endpoint = None,
                ReplayEndpoint::At(endpoint) => {
                    stream.replay_endpoint = event_endpoints::seen_from_here(endpoint, host)
                        .and_then(|endpoint| event_endpoints::of_rank(&endpoint, stream.rank));
                }
                ReplayEndpoint::Auto => {}
            }
            let topic = [&self.own.topic, &self.all.topic_filter].into_iter().find(|topic| !topic.is_empty());
            if let Some(topic) = topic {
                stream.topic.clone_from(topic);
            }
        }
        found
    }

    async fn configured(
        &self,
        endpoint: &str,
        announced: Option<&[EventEndpoint]>,
        host: &str,
        ranks: u32,
        connect_timeout: Duration,
    ) -> Vec<EventEndpoint> {
        // A socket of ours is bound where the configuration says, star included.
        let base =
            if self.own.bind { Some(endpoint.to_owned()) } else { event_endpoints::seen_from_here(endpoint, host) };
        let Some(base) = base else { return Vec::new() };
        let of = |rank| {
            let told = announced.and_then(|announced| announced.iter().find(|told| told.rank == rank));
            Some(EventEndpoint {
                rank,
                endpoint: event_endpoints::of_rank(&base, rank)?,
                replay_endpoint: told.and_then(|told| told.replay_endpoint.clone()),
                topic: String::new(),
            })
        };
        let mut found: Vec<EventEndpoint> = (0..ranks).filter_map(of).collect();
        // Older engines announce nothing: the usual place of their replay socket is tried.
        if let ([only], None, false) = (found.as_mut_slice(), announced, self.own.bind)
            && self.all.replay
            && self.own.replay_endpoint == ReplayEndpoint::Auto
        {
            only.replay_endpoint = next_port_if_replay(&only.endpoint, connect_timeout).await;
        }
        found
    }

    /// The default port, where something listens; the port after it as its replay socket, where one answers and it is no
    /// further rank's.
    async fn guessed(&self, host: &str, ranks: u32, connect_timeout: Duration) -> Vec<EventEndpoint> {
        let listens = async |port: u16| {
            let address = Address::Tcp { host: host.to_owned(), port };
            net::connect(&address, connect_timeout).await.is_ok()
        };
        let mut found = Vec::new();
        for rank in 0..ranks {
            let Some(port) = u16::try_from(rank).ok().and_then(|rank| self.all.default_port.checked_add(rank)) else {
                break;
            };
            if !listens(port).await {
                break;
            }
            let endpoint = event_endpoints::tcp(host, port);
            let replay_endpoint = if ranks == 1 { next_port_if_replay(&endpoint, connect_timeout).await } else { None };
            found.push(EventEndpoint { rank, endpoint, replay_endpoint, topic: String::new() });
        }
        found
    }

    fn source_settings(&self) -> SourceSettings {
        SourceSettings {
            max_message: self.all.max_message,
            queue_batches: self.all.queue_batches,
            stale_after: self.all.stale_after,
            replay_timeout: REPLAY_TIMEOUT,
            ..SourceSettings::default()
        }
    }
}

/// The port after a publisher's, if a replay socket answers there: another engine's publisher may.
async fn next_port_if_replay(endpoint: &str, connect_timeout: Duration) -> Option<String> {
    let next = event_endpoints::of_rank(endpoint, 1)?;
    let limit = connect_timeout.min(GUESS_TIMEOUT);
    let limits = Limits { handshake_timeout: limit, ..Limits::default() };
    Dealer::connect(&next.parse().ok()?, limits, limit).await.ok()?;
    Some(next)
}

/// The streams of one worker as they run.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    wanted: Vec<EventEndpoint>,
    model: Option<Arc<str>>,
    changes: Vec<watch::Receiver<u64>>,
    /// A stream's task ended by itself.
    one_ended: bool,
    /// When wanted streams that do not run are tried again.
    retry_at: Option<Moment>,
    /// Why streams do not run, as last said.
    refusals: Vec<String>,
}

impl Streams {
    /// Makes the running streams those of `wanted`: streams that stay are left alone, since they notice restarts
    /// themselves.
    pub(crate) async fn run(
        &mut self,
        board: &Board,
        settings: &StreamSettings,
        worker: (WorkerId, &Arc<str>),
        model: &Arc<str>,
        wanted: Vec<EventEndpoint>,
    ) {
        if self.wanted == wanted && self.model.as_ref() == Some(model) {
            return;
        }
        let id = worker.0;
        let targets = |entry: &Entry| entry.streams.iter().map(|old| Target { worker: id, rank: old.rank }).collect();
        let followed: Vec<Target> = board.with(id, targets).unwrap_or_default();
        self.stop(board, id).await;
        // A new stream tells its history from the beginning: on top of what the old one told, blocks would count twice,
        // and what was removed in between would stay.
        followed.into_iter().for_each(|target| board.index.clear(target));
        self.wanted = wanted;
        self.model = Some(Arc::clone(model));
        self.start_missing(board, settings, worker);
    }

    /// Starts the wanted streams that do not run. Those that cannot be started, because another worker follows the same
    /// publisher, are tried again later: it may let go of it.
    pub(crate) fn start_missing(&mut self, board: &Board, settings: &StreamSettings, worker: (WorkerId, &Arc<str>)) {
        self.retry_at = None;
        let Some(model) = self.model.clone() else { return };
        let runs = |streams: &[RankStream], rank: u32| {
            streams.iter().any(|stream| stream.rank.0 == rank && !stream.source.ended())
        };
        let mut started: Vec<RankStream> = Vec::new();
        let mut refusals = Vec::new();
        for stream in &self.wanted {
            let running = board.with(worker.0, |entry| runs(&entry.streams, stream.rank)) == Some(true);
            if running || runs(&started, stream.rank) {
                continue;
            }
            match spawn(board, settings, worker, &model, stream) {
                Ok(fresh) => {
                    self.changes.push(fresh.source.changes());
                    started.push(fresh);
                }
                Err(reason) => {
                    if !self.refusals.contains(&reason) {
                        warn!(worker = %worker.1, endpoint = %stream.endpoint, reason, "event stream not followed");
                    }
                    refusals.push(reason);
                }
            }
        }
        if !refusals.is_empty() {
            self.retry_at = Some(board.clock.now() + RETRY);
        }
        self.refusals = refusals;
        board.change(worker.0, |entry| {
            entry.streams.retain(|old| started.iter().all(|new| new.rank != old.rank));
            entry.streams.append(&mut started);
            entry.streams.sort_by_key(|stream| stream.rank);
        });
    }

    /// When [`Streams::start_missing`] is to be called.
    pub(crate) fn retry_at(&self) -> Option<Moment> {
        self.retry_at
    }

    /// Forgets what streams said whose task ended: nobody hears what became of it. They are started again after a pause.
    pub(crate) fn forget_ended(&mut self, board: &Board, worker: (WorkerId, &Arc<str>)) {
        if !std::mem::take(&mut self.one_ended) {
            return;
        }
        board.with(worker.0, |entry| {
            for stream in entry.streams.iter().filter(|stream| stream.source.ended()) {
                error!(worker = %worker.1, rank = stream.rank.0, "event stream's task ended by itself: its part of the index is dropped");
                board.index.clear(Target { worker: worker.0, rank: stream.rank });
            }
        });
        self.retry_at = Some(board.clock.now() + RETRY);
    }

    /// Stops all streams and waits for their end.
    pub(crate) async fn stop(&mut self, board: &Board, id: WorkerId) {
        *self = Self::default();
        for stream in board.take_streams(id) {
            stream.source.stop().await;
        }
        board.unclaim(id);
    }

    /// Whether any stream runs.
    pub(crate) fn any(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Waits until a stream's state or its part of the index changed; for ever if there is none.
    pub(crate) async fn changed(&mut self) {
        if self.changes.is_empty() {
            return std::future::pending().await;
        }
        let changes = self.changes.iter_mut().map(|change| Box::pin(change.changed()));
        let (result, at, _) = futures_util::future::select_all(changes).await;
        if result.is_err() {
            self.changes.swap_remove(at);
            self.one_ended = true;
        }
    }
}

fn spawn(
    board: &Board,
    settings: &StreamSettings,
    (id, name): (WorkerId, &Arc<str>),
    model: &Arc<str>,
    stream: &EventEndpoint,
) -> Result<RankStream, String> {
    let endpoint = Endpoint::from_str(&stream.endpoint).map_err(|error| error.to_string())?;
    let replay_endpoint = match &stream.replay_endpoint {
        Some(replay) => Some(Endpoint::from_str(replay).map_err(|error| error.to_string())?),
        None => None,
    };
    board.claim(&stream.endpoint, id).map_err(|holder| {
        format!("worker {holder} follows the same publisher already: give each worker its own kv_events.endpoint")
    })?;
    let rank = DpRank(stream.rank);
    let replay = replay_endpoint.is_some();
    let spec = SourceSpec {
        target: Target { worker: id, rank },
        worker: Arc::clone(name),
        model: Arc::clone(model),
        endpoint,
        replay_endpoint,
        topic: stream.topic.clone(),
        bind: settings.own.bind,
        defaults: EventDefaults::default(),
        settings: settings.source_settings(),
    };
    let source = ZmqSource::spawn(spec, Arc::clone(&board.index), board.clock);
    Ok(RankStream { rank, replay, source })
}

#[cfg(test)]
mod tests;
