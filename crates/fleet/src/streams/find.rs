//! Finds the event streams of a worker.

use std::time::Duration;

use config::{EventSource, ReplayEndpoint};
use net::{Address, Destinations};
use zmtp::{Dealer, Limits};

use super::{settings::StreamSettings, stream_spec::StreamSpec};
use crate::probe::event_endpoints::{self, EventEndpoint};

/// Longest handshake with a guessed socket.
const GUESS_TIMEOUT: Duration = Duration::from_secs(1);

/// A search for the streams of one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamSearch<'a> {
    pub(crate) settings: &'a StreamSettings,
    /// The publishers that the engine announces.
    pub(crate) announced: Option<&'a [EventEndpoint]>,
    /// The worker's host, as reachable from here.
    pub(crate) host: &'a str,
    /// The number of its ranks.
    pub(crate) ranks: u32,
    pub(crate) connect_timeout: Duration,
}

impl StreamSearch<'_> {
    /// Finds the streams to follow.
    pub(crate) async fn find(&self) -> Vec<StreamSpec> {
        if !self.settings.all.enabled {
            return Vec::new();
        }
        let mut found = self.of_engine().await;
        let store = self.settings.own.store.clone();
        found.extend(store.map(|endpoint| StreamSpec::Store {
            ranks: self.ranks,
            endpoint,
        }));
        found
    }

    async fn of_engine(&self) -> Vec<StreamSpec> {
        let own = &self.settings.own;
        match (own.source, own.endpoint.clone()) {
            (EventSource::None, _) => Vec::new(),
            (EventSource::Poll, _) => vec![StreamSpec::Polled {
                endpoint: self.settings.url.to_string(),
            }],
            (EventSource::Sse | EventSource::Ws, Some(endpoint)) => {
                vec![StreamSpec::Standard { endpoint }]
            }
            (EventSource::Nats, Some(subject)) if self.ranks == 1 => vec![StreamSpec::Nats {
                rank: 0,
                endpoint: subject,
            }],
            (EventSource::Nats, Some(subject)) => (0..self.ranks)
                .map(|rank| StreamSpec::Nats {
                    rank,
                    endpoint: format!("{subject}.{rank}"),
                })
                .collect(),
            // The configuration has no such source.
            (EventSource::Sse | EventSource::Ws | EventSource::Nats, None) => Vec::new(),
            (EventSource::Auto | EventSource::Zmq, Some(endpoint)) if own.bind => {
                // Engines add the rank to the port that they connect to, too.
                let of = |rank| {
                    Some(StreamSpec::Bound {
                        rank,
                        endpoint: event_endpoints::of_rank(&endpoint, rank)?,
                    })
                };
                (0..self.ranks).filter_map(of).collect()
            }
            (EventSource::Auto | EventSource::Zmq, _) => {
                let found = self.publishers().await;
                found.into_iter().map(StreamSpec::Publisher).collect()
            }
        }
    }

    /// Returns the publishers to connect to, in order of trust: the worker's own configuration, the
    /// engine's announcement, and last the default port, if something listens there and no other
    /// worker shares the host (otherwise two engines on one machine would both be credited with the
    /// events of the one that has that port).
    async fn publishers(&self) -> Vec<EventEndpoint> {
        let StreamSettings { own, all, .. } = self.settings;
        let mut found = match (&own.endpoint, self.announced) {
            (Some(endpoint), _) => self.configured(endpoint).await,
            (None, Some(announced)) => announced.to_vec(),
            (None, None) if self.settings.host_is_its_own => self.guessed().await,
            (None, None) => Vec::new(),
        };
        found.retain(|stream| stream.rank < self.ranks);
        for stream in &mut found {
            match &own.replay_endpoint {
                _ if !all.replay => stream.replay_endpoint = None,
                ReplayEndpoint::None => stream.replay_endpoint = None,
                ReplayEndpoint::At(endpoint) => {
                    stream.replay_endpoint =
                        event_endpoints::reachable_endpoint(endpoint, self.host)
                            .and_then(|endpoint| event_endpoints::of_rank(&endpoint, stream.rank));
                }
                ReplayEndpoint::Auto => {}
            }
            if let Some(topic) = self.settings.topic() {
                stream.topic = topic.to_owned();
            }
        }
        found
    }

    async fn configured(&self, endpoint: &str) -> Vec<EventEndpoint> {
        let Some(base) = event_endpoints::reachable_endpoint(endpoint, self.host) else {
            return Vec::new();
        };
        let of = |rank| {
            let known = self
                .announced
                .and_then(|announced| announced.iter().find(|known| known.rank == rank));
            Some(EventEndpoint {
                rank,
                endpoint: event_endpoints::of_rank(&base, rank)?,
                replay_endpoint: known.and_then(|known| known.replay_endpoint.clone()),
                topic: String::new(),
            })
        };
        let mut found: Vec<EventEndpoint> = (0..self.ranks).filter_map(of).collect();
        // Older engines announce nothing: the usual place of their replay socket is tried.
        if let ([only], None) = (found.as_mut_slice(), self.announced)
            && self.settings.all.replay
            && self.settings.own.replay_endpoint == ReplayEndpoint::Auto
        {
            only.replay_endpoint = self.next_port_if_replay(&only.endpoint).await;
        }
        found
    }

    /// Returns the default port if something listens there, with the port after it as its replay
    /// socket, if one answers there and it is no further rank's.
    async fn guessed(&self) -> Vec<EventEndpoint> {
        let mut found = Vec::new();
        for rank in 0..self.ranks {
            let Some(port) = u16::try_from(rank)
                .ok()
                .and_then(|rank| self.settings.all.default_port.checked_add(rank))
            else {
                break;
            };
            if !self.listens(port).await {
                break;
            }
            let endpoint = event_endpoints::tcp(self.host, port);
            let replay_endpoint = if self.ranks == 1 {
                self.next_port_if_replay(&endpoint).await
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

    async fn listens(&self, port: u16) -> bool {
        let address = Address::Tcp {
            host: self.host.to_owned(),
            port,
        };
        let destinations = self.settings.url.destinations();
        let opened = destinations.connect(&address, self.connect_timeout).await;
        opened.is_ok()
    }

    async fn next_port_if_replay(&self, endpoint: &str) -> Option<String> {
        let destinations = self.settings.url.destinations();
        next_port_if_replay(endpoint, destinations, self.connect_timeout).await
    }
}

/// Returns the port after a publisher's if a replay socket answers there; it may be another
/// engine's publisher instead.
pub(super) async fn next_port_if_replay(
    endpoint: &str,
    destinations: Destinations,
    connect_timeout: Duration,
) -> Option<String> {
    let next = event_endpoints::of_rank(endpoint, 1)?;
    let limit = connect_timeout.min(GUESS_TIMEOUT);
    let limits = Limits {
        destinations,
        handshake_timeout: limit,
        ..Limits::default()
    };
    Dealer::connect(&next.parse().ok()?, limits, limit)
        .await
        .ok()?;
    Some(next)
}
