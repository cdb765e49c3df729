//! Finds the event streams of a worker.

use std::time::Duration;

use config::{EventSource, ReplayEndpoint, Secret};
use event_sources::SourceSettings;
use kv_blocks::{BlockSize, DpRank, HashScheme};
use net::{Address, WorkerUrl};
use zmtp::{Dealer, Limits};

use crate::{
    probe::event_endpoints::{self, EventEndpoint},
    worker_record::RankSelection,
};

/// A replay without a message for this long has failed: an idle engine answers within about 0.1 s.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest handshake with a guessed socket.
const GUESS_TIMEOUT: Duration = Duration::from_secs(1);

/// A stream to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WantedStream {
    /// One rank's ZMQ publisher.
    Publisher(EventEndpoint),
    /// A socket of ours that one rank connects to, and maybe others.
    Bound { rank: u32, endpoint: String },
    /// Standard events over HTTP or a WebSocket.
    Standard { endpoint: String },
    /// The event list that the engine at this URL serves to polls.
    Polled { endpoint: String },
    /// One rank's NATS subject.
    Nats { rank: u32, endpoint: String },
}

impl WantedStream {
    pub(crate) fn ranks(&self) -> RankSelection {
        match self {
            Self::Publisher(EventEndpoint { rank, .. })
            | Self::Nats { rank, .. }
            | Self::Bound { rank, .. } => RankSelection::One(DpRank(*rank)),
            Self::Standard { .. } | Self::Polled { .. } => RankSelection::All,
        }
    }

    pub(crate) fn into_publisher(self) -> Option<EventEndpoint> {
        match self {
            Self::Publisher(place) => Some(place),
            _ => None,
        }
    }

    pub(crate) fn endpoint(&self) -> &str {
        match self {
            Self::Publisher(EventEndpoint { endpoint, .. })
            | Self::Bound { endpoint, .. }
            | Self::Standard { endpoint }
            | Self::Polled { endpoint }
            | Self::Nats { endpoint, .. } => endpoint,
        }
    }
}

/// The settings that decide where a worker's streams are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamSettings {
    pub(crate) own: config::WorkerKvEvents,
    pub(crate) all: config::KvEventsSection,
    /// Whether no other worker has the same host.
    pub(crate) host_is_its_own: bool,
    /// Whether no other worker has the same socket of ours and the same topics.
    pub(crate) bound_alone: bool,
    /// The worker's base URL.
    pub(crate) url: WorkerUrl,
    /// The API key that it requires.
    pub(crate) api_key: Option<Secret>,
    /// The configured block size.
    pub(crate) block_size: Option<BlockSize>,
    /// The hash scheme of the index.
    pub(crate) scheme: HashScheme,
}

impl StreamSettings {
    /// Returns whether a running stream would differ under these settings. Other workers on the
    /// host only matter for finding a stream, and a key only for a new connection.
    pub(crate) fn differ_from(&self, other: &Self) -> bool {
        self.own != other.own
            || self.all != other.all
            || self.url != other.url
            || self.block_size != other.block_size
            || self.scheme != other.scheme
    }

    /// Returns whether events of this worker are wanted.
    pub(crate) fn wanted(&self) -> bool {
        self.all.enabled && self.own.source != EventSource::None
    }

    /// Finds the streams of a worker with this many ranks. `host` is the worker's, as reachable
    /// from here.
    pub(crate) async fn find(
        &self,
        announced: Option<&[EventEndpoint]>,
        host: &str,
        ranks: u32,
        connect_timeout: Duration,
    ) -> Vec<WantedStream> {
        if !self.all.enabled {
            return Vec::new();
        }
        let endpoint = self.own.endpoint.clone();
        match (self.own.source, endpoint) {
            (EventSource::None, _) => Vec::new(),
            (EventSource::Poll, _) => vec![WantedStream::Polled {
                endpoint: self.url.to_string(),
            }],
            (EventSource::Sse | EventSource::Ws, Some(endpoint)) => {
                vec![WantedStream::Standard { endpoint }]
            }
            (EventSource::Nats, Some(subject)) if ranks == 1 => vec![WantedStream::Nats {
                rank: 0,
                endpoint: subject,
            }],
            (EventSource::Nats, Some(subject)) => (0..ranks)
                .map(|rank| WantedStream::Nats {
                    rank,
                    endpoint: format!("{subject}.{rank}"),
                })
                .collect(),
            // The configuration has no such source.
            (EventSource::Sse | EventSource::Ws | EventSource::Nats, None) => Vec::new(),
            (EventSource::Auto | EventSource::Zmq, Some(endpoint)) if self.own.bind => {
                // Engines add the rank to the port that they connect to, too.
                let of = |rank| {
                    Some(WantedStream::Bound {
                        rank,
                        endpoint: event_endpoints::of_rank(&endpoint, rank)?,
                    })
                };
                (0..ranks).filter_map(of).collect()
            }
            (EventSource::Auto | EventSource::Zmq, _) => {
                let found = self
                    .publishers(announced, host, ranks, connect_timeout)
                    .await;
                found.into_iter().map(WantedStream::Publisher).collect()
            }
        }
    }

    /// Returns the publishers to connect to, in order of trust: the worker's own configuration, the
    /// engine's announcement, and last the default port, if something listens there and no other
    /// worker shares the host (otherwise two engines on one machine would both be credited with the
    /// events of the one that has that port).
    async fn publishers(
        &self,
        announced: Option<&[EventEndpoint]>,
        host: &str,
        ranks: u32,
        connect_timeout: Duration,
    ) -> Vec<EventEndpoint> {
        let mut found = match (&self.own.endpoint, announced) {
            (Some(endpoint), _) => {
                self.configured(endpoint, announced, host, ranks, connect_timeout)
                    .await
            }
            (None, Some(announced)) => announced.to_vec(),
            (None, None) if self.host_is_its_own => {
                self.guessed(host, ranks, connect_timeout).await
            }
            (None, None) => Vec::new(),
        };
        found.retain(|stream| stream.rank < ranks);
        for stream in &mut found {
            match &self.own.replay_endpoint {
                _ if !self.all.replay => stream.replay_endpoint = None,
                ReplayEndpoint::None => stream.replay_endpoint = None,
                ReplayEndpoint::At(endpoint) => {
                    stream.replay_endpoint = event_endpoints::reachable_endpoint(endpoint, host)
                        .and_then(|endpoint| event_endpoints::of_rank(&endpoint, stream.rank));
                }
                ReplayEndpoint::Auto => {}
            }
            if let Some(topic) = self.topic() {
                stream.topic = topic.to_owned();
            }
        }
        found
    }

    /// Returns whether missed events are requested from a server other than the engine's own
    /// socket.
    pub(super) fn wants_replay(&self) -> bool {
        self.all.replay && self.own.replay_endpoint != ReplayEndpoint::None
    }

    /// Returns the configured topics.
    pub(super) fn topic(&self) -> Option<&str> {
        [&self.own.topic, &self.all.topic_filter]
            .into_iter()
            .find(|topic| !topic.is_empty())
            .map(String::as_str)
    }

    pub(super) async fn configured(
        &self,
        endpoint: &str,
        announced: Option<&[EventEndpoint]>,
        host: &str,
        ranks: u32,
        connect_timeout: Duration,
    ) -> Vec<EventEndpoint> {
        let Some(base) = event_endpoints::reachable_endpoint(endpoint, host) else {
            return Vec::new();
        };
        let of = |rank| {
            let told =
                announced.and_then(|announced| announced.iter().find(|told| told.rank == rank));
            Some(EventEndpoint {
                rank,
                endpoint: event_endpoints::of_rank(&base, rank)?,
                replay_endpoint: told.and_then(|told| told.replay_endpoint.clone()),
                topic: String::new(),
            })
        };
        let mut found: Vec<EventEndpoint> = (0..ranks).filter_map(of).collect();
        // Older engines announce nothing: the usual place of their replay socket is tried.
        if let ([only], None) = (found.as_mut_slice(), announced)
            && self.all.replay
            && self.own.replay_endpoint == ReplayEndpoint::Auto
        {
            only.replay_endpoint = next_port_if_replay(&only.endpoint, connect_timeout).await;
        }
        found
    }

    /// Returns the default port if something listens there, with the port after it as its replay
    /// socket, if one answers there and it is no further rank's.
    async fn guessed(
        &self,
        host: &str,
        ranks: u32,
        connect_timeout: Duration,
    ) -> Vec<EventEndpoint> {
        let listens = async |port: u16| {
            let address = Address::Tcp {
                host: host.to_owned(),
                port,
            };
            net::connect(&address, connect_timeout).await.is_ok()
        };
        let mut found = Vec::new();
        for rank in 0..ranks {
            let Some(port) = u16::try_from(rank)
                .ok()
                .and_then(|rank| self.all.default_port.checked_add(rank))
            else {
                break;
            };
            if !listens(port).await {
                break;
            }
            let endpoint = event_endpoints::tcp(host, port);
            let replay_endpoint = if ranks == 1 {
                next_port_if_replay(&endpoint, connect_timeout).await
            } else {
                None
            };
            found.push(EventEndpoint {
                rank,
                endpoint,
                replay_endpoint,
                topic: String::new(),
            });
        }
        found
    }

    pub(super) fn source_settings(&self) -> SourceSettings {
        SourceSettings {
            max_message: self.all.max_message,
            queue_batches: self.all.queue_batches,
            stale_after: self.all.stale_after,
            replay_timeout: REPLAY_TIMEOUT,
            ..SourceSettings::default()
        }
    }
}

/// Returns the port after a publisher's if a replay socket answers there; it may be another
/// engine's publisher instead.
pub(super) async fn next_port_if_replay(
    endpoint: &str,
    connect_timeout: Duration,
) -> Option<String> {
    let next = event_endpoints::of_rank(endpoint, 1)?;
    let limit = connect_timeout.min(GUESS_TIMEOUT);
    let limits = Limits {
        handshake_timeout: limit,
        ..Limits::default()
    };
    Dealer::connect(&next.parse().ok()?, limits, limit)
        .await
        .ok()?;
    Some(next)
}
