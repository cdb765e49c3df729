//! One connection to a NATS server, from name resolution to its end.
//!
//! `async-nats` would reconnect by itself: to an address that was never checked, and with messages
//! of the new connection before the reader learns of it. So a client is dropped with its first
//! connection.

use std::{io, net::SocketAddr, sync::atomic::Ordering, time::Duration};

use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr, connection::State,
    rustls::ClientConfig,
};
use net::{Address, Destinations, ForbiddenAddress, TrustError, TrustRoots};
use tokio::{
    net::lookup_host,
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval, timeout},
};

use crate::{NatsCredentials, NatsServer};

/// Interval of checks of the connection's state.
const TICK: Duration = Duration::from_millis(250);
/// Time limit for connection, encryption and greeting with one address.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time limit for the name and all its addresses together.
const OPENING: Duration = Duration::from_secs(15);
/// Interval of pings to a silent server; the third unanswered one ends the connection.
const PING: Duration = Duration::from_secs(10);
/// Messages that `async-nats` queues for a subscription before the reader's task takes them; more
/// are dropped.
const ARRIVALS: usize = 65_536;
/// Publications on their way to the socket. When full, publishers wait.
const DEPARTURES: usize = 64;

/// Reasons for a failed connection. Each message names the server and the next step.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message explains its fields")]
pub enum DialError {
    #[error("{server} cannot be found ({source}): check its name")]
    Name {
        server: NatsServer,
        source: io::Error,
    },
    #[error("{server}: {source}")]
    Forbidden {
        server: NatsServer,
        source: ForbiddenAddress,
    },
    #[error("{server} is refused by async-nats ({source}): write it as nats://host:port")]
    Address {
        server: NatsServer,
        source: io::Error,
    },
    #[error("{server} did not answer within {limit:?}: check that a nats server listens there")]
    Slow { server: NatsServer, limit: Duration },
    #[error("{server} does not let us in ({source}): check the credentials")]
    Refused {
        server: NatsServer,
        source: ConnectError,
    },
    #[error("{server} cannot be reached ({source}): check that a nats server listens there")]
    Unreachable {
        server: NatsServer,
        source: ConnectError,
    },
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// The settings of a connection.
#[derive(Clone, Debug)]
pub struct NatsDialer {
    /// The server.
    pub server: NatsServer,
    /// Credentials for it.
    pub credentials: Option<NatsCredentials>,
    /// Trusted certificate authorities for an encrypted connection; `None`: those of this machine.
    pub trust: Option<TrustRoots>,
    /// Addresses that the connection may go to.
    pub destinations: Destinations,
    /// The client name that the server displays.
    pub name: String,
}

/// An open connection. Dropping it, with every object made from its client, closes it.
#[derive(Debug)]
pub struct NatsConnection {
    /// The client, for this connection only.
    pub client: Client,
    /// Bounded: an event that does not fit is not needed, since the connection's state is checked
    /// too.
    events: mpsc::Receiver<Event>,
    ticks: Interval,
}

/// Events of a connection.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// An error of the server that does not end the connection.
    Fault(String),
    /// The end of the connection.
    Down,
}

impl NatsDialer {
    /// Opens one connection; the caller repeats it after its end.
    pub async fn open(&self) -> Result<NatsConnection, DialError> {
        let slow = |_| DialError::Slow {
            server: self.server.clone(),
            limit: OPENING,
        };
        timeout(OPENING, self.connect()).await.map_err(slow)?
    }

    async fn connect(&self) -> Result<NatsConnection, DialError> {
        let address = self.address().await?;
        let (sender, events) = mpsc::channel(16);
        let options = ConnectOptions::new()
            .name(&self.name)
            .require_tls(self.server.is_tls())
            .tls_client_config(self.tls().await?)
            .connection_timeout(HANDSHAKE)
            .ping_interval(PING)
            .subscription_capacity(ARRIVALS)
            .client_capacity(DEPARTURES)
            .ignore_discovered_servers()
            // Nobody reads what the same process published.
            .no_echo()
            // One attempt: it ends the client's internal task soon after its connection is lost.
            .max_reconnects(1)
            .reconnect_delay_callback(|_| Duration::ZERO)
            .event_callback(move |event| {
                let _ = sender.try_send(event);
                std::future::ready(())
            });
        let options = match &self.credentials {
            Some(credentials) => credentials.give(options),
            None => options,
        };
        let client = options
            .connect(address)
            .await
            .map_err(|source| self.refusal(source))?;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(NatsConnection {
            client,
            events,
            ticks,
        })
    }

    /// Returns the address that `async-nats` connects to. It resolves names itself, so only a
    /// checked address in place of the name ensures that the connection goes there. An encrypted
    /// server keeps its name, against which its certificate is checked; if that name changes its
    /// address in between, the handshake fails, and nothing is sent before it.
    async fn address(&self) -> Result<ServerAddr, DialError> {
        let server = || self.server.clone();
        let read = |text: String| {
            text.parse().map_err(|source| DialError::Address {
                server: server(),
                source,
            })
        };
        let Address::Tcp { host, port } = self.server.address() else {
            return read(self.server.to_string());
        };
        if self.destinations == Destinations::Any {
            return read(self.server.to_string());
        }
        let nowhere = |source| DialError::Name {
            server: server(),
            source,
        };
        let found: Vec<SocketAddr> = lookup_host((host.as_str(), port))
            .await
            .map_err(nowhere)?
            .collect();
        let mut forbidden = None;
        for address in found {
            match self.destinations.check(address.ip()) {
                Ok(()) if self.server.is_tls() => return read(self.server.to_string()),
                Ok(()) => return read(format!("{}://{address}", self.server.scheme())),
                Err(source) => forbidden = Some(source),
            }
        }
        Err(match forbidden {
            Some(source) => DialError::Forbidden {
                server: server(),
                source,
            },
            None => nowhere(io::Error::new(io::ErrorKind::NotFound, "it has no address")),
        })
    }

    /// Builds the TLS configuration, always: a server may require encryption though its URL does
    /// not, and `async-nats` would then choose a cryptography provider by itself.
    async fn tls(&self) -> Result<ClientConfig, DialError> {
        let trust = match &self.trust {
            Some(trust) => trust.clone(),
            None => match TrustRoots::system_now().await {
                Err(error) if self.server.is_tls() => return Err(error.into()),
                // A machine without certificate authorities can still reach an unencrypted server.
                Err(_) => TrustRoots::none()?,
                Ok(trust) => trust,
            },
        };
        Ok(trust.without_http().client_config())
    }

    fn refusal(&self, source: ConnectError) -> DialError {
        let server = self.server.clone();
        match source.kind() {
            ConnectErrorKind::TimedOut => DialError::Slow {
                server,
                limit: HANDSHAKE,
            },
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                DialError::Refused { server, source }
            }
            _ => DialError::Unreachable { server, source },
        }
    }
}

impl NatsConnection {
    /// Returns the next event of the connection; nothing follows [`ConnectionEvent::Down`].
    /// Cancel-safe.
    pub async fn next(&mut self) -> ConnectionEvent {
        loop {
            let event = tokio::select! {
                event = self.events.recv() => event,
                _ = self.ticks.tick() => {
                    if self.is_down() { None } else { continue }
                }
            };
            match event {
                Some(Event::ServerError(error)) => {
                    return ConnectionEvent::Fault(error.to_string());
                }
                Some(Event::Disconnected | Event::Closed) | None => return ConnectionEvent::Down,
                Some(_) => {}
            }
        }
    }

    /// Returns whether the connection is over, or is no longer the first one.
    fn is_down(&self) -> bool {
        self.client.connection_state() != State::Connected
            || self.client.statistics().connects.load(Ordering::Relaxed) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(server: &str, destinations: Destinations) -> NatsDialer {
        let server = server.parse().unwrap();
        NatsDialer {
            server,
            credentials: None,
            trust: None,
            destinations,
            name: "test".to_owned(),
        }
    }

    #[tokio::test]
    async fn a_forbidden_address_is_not_dialled() {
        for server in ["nats://169.254.169.254", "tls://169.254.169.254"] {
            let error = to(server, Destinations::Engines)
                .open()
                .await
                .err()
                .unwrap();
            assert!(matches!(error, DialError::Forbidden { .. }), "{error}");
            assert!(
                error.to_string().contains("no engine may be reached there"),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn the_dialled_address_is_the_checked_one() {
        let address = async |server, destinations| {
            to(server, destinations)
                .address()
                .await
                .unwrap()
                .into_inner()
        };
        let host = address("nats://localhost:4333", Destinations::Engines).await;
        assert!(
            ["127.0.0.1", "[::1]"].contains(&host.host_str().unwrap()),
            "{host}"
        );
        assert_eq!(
            address("nats://localhost:4333", Destinations::Any)
                .await
                .host_str(),
            Some("localhost")
        );
        // The name in the certificate.
        assert_eq!(
            address("tls://localhost:4333", Destinations::Engines)
                .await
                .host_str(),
            Some("localhost")
        );
    }
}
