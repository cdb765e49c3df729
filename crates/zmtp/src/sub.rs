//! SUB: receives published messages, and reports connects and disconnects.
//!
//! A connecting [`Sub`] has no queue and no task: [`Sub::next`] reads the socket itself, so that a
//! caller that does not read slows the sender through TCP, and nothing piles up here.

use std::{fmt, future::Future, net::IpAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use net::{Address, ListenError, listen};
use resilience::Backoff;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, Sleep},
};

use crate::{
    Disconnect, Endpoint, EndpointError, Limits, PeerFilter,
    accept::{AcceptLoop, Peer},
    backoff,
    codec::{Incoming, SocketType},
    connection::ZmtpConnection,
};

/// Queue limit of a bound socket in message bytes. When it is full, connections stop reading.
const QUEUE_BYTES: usize = 64 << 20;

/// An event of a [`Sub`]. `peer` numbers connections; no number is used twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubEvent {
    /// A publisher is connected; the subscriptions are being sent to it.
    Connected {
        /// The connection.
        peer: u64,
        /// The publisher's address; `None` for a unix socket and for an outgoing connection.
        address: Option<IpAddr>,
    },
    /// A message of that connection, never without frames.
    Message {
        /// The connection.
        peer: u64,
        /// Its frames.
        frames: Vec<Bytes>,
    },
    /// A connection that was reported as connected ended. A connecting socket tries again by
    /// itself.
    Disconnected {
        /// The connection.
        peer: u64,
        /// The reason, for people.
        reason: String,
    },
    /// A connection attempt failed; the next one follows by itself.
    Unreachable {
        /// The reason, for people.
        reason: String,
        /// The address of a peer that the socket does not serve, if that was the reason.
        refused: Option<IpAddr>,
    },
}

/// A subscriber.
#[derive(Debug)]
pub struct Sub(SubMode);

#[derive(Debug)]
enum SubMode {
    Connects(Box<SubDialer>),
    Binds(BoundSub),
}

impl Sub {
    /// Follows one publisher. Nothing happens before [`Sub::next`], which connects, and reconnects
    /// after 100 ms, doubling up to 2 s.
    pub fn connect(
        endpoint: &Endpoint,
        topics: &[&[u8]],
        limits: Limits,
    ) -> Result<Self, EndpointError> {
        Ok(Self(SubMode::Connects(Box::new(SubDialer {
            dial: DialTarget {
                address: endpoint.to_address()?,
                limits,
            },
            topics: owned(topics),
            backoff: backoff::reconnects(),
            peers: 0,
            since: Instant::now(),
            link: SubLink::Waiting(Box::pin(tokio::time::sleep(Duration::ZERO))),
        }))))
    }

    /// Binds a socket for publishers. The returned endpoint has the port that the system chose.
    pub async fn bind(
        endpoint: &Endpoint,
        topics: &[&[u8]],
        limits: Limits,
    ) -> Result<(Self, Endpoint), ListenError> {
        Self::bind_for(endpoint, topics, limits, PeerFilter::default()).await
    }

    /// Like [`Sub::bind`], but serves only peers that `peers` admits.
    pub async fn bind_for(
        endpoint: &Endpoint,
        topics: &[&[u8]],
        limits: Limits,
        peers: PeerFilter,
    ) -> Result<(Self, Endpoint), ListenError> {
        let listener = listen(&endpoint.to_listen_addr()).await?;
        let bound = Endpoint::from(listener.address().address());
        let topics = owned(topics);
        // When full, connections stop reading, and TCP slows their publishers.
        let (events, queue) = mpsc::channel(16);
        let byte_permits = Arc::new(Semaphore::new(QUEUE_BYTES));
        let accepting = AcceptLoop::start(listener, limits.max_peers, move |peer| {
            let events = EventSender {
                queue: events.clone(),
                byte_permits: Arc::clone(&byte_permits),
            };
            let address = peer.address();
            let (topics, limits) = (topics.clone(), limits.clone());
            let is_admitted = peers.admits(address);
            async move {
                match address {
                    Some(address) if !is_admitted => events.refuse(address).await,
                    _ => serve(peer, topics, limits, events).await,
                }
            }
        });
        Ok((
            Self(SubMode::Binds(BoundSub {
                queue,
                _accepting: accepting,
            })),
            bound,
        ))
    }

    /// Returns the next event; there is always another one. May be cancelled without losing
    /// anything.
    pub async fn next(&mut self) -> SubEvent {
        match &mut self.0 {
            SubMode::Connects(connecting) => connecting.next().await,
            SubMode::Binds(bound) => match bound.queue.recv().await {
                Some(queued) => queued.event,
                // The accept loop holds a sender for as long as this socket lives.
                None => std::future::pending().await,
            },
        }
    }
}

fn owned(topics: &[&[u8]]) -> Vec<Bytes> {
    topics
        .iter()
        .map(|topic| Bytes::copy_from_slice(topic))
        .collect()
}

#[derive(Debug)]
struct SubDialer {
    dial: DialTarget,
    topics: Vec<Bytes>,
    backoff: Backoff,
    peers: u64,
    since: Instant,
    link: SubLink,
}

enum SubLink {
    Waiting(Pin<Box<Sleep>>),
    /// Stored here and not in a local variable: a cancelled call must not abandon the attempt.
    Opening(Pin<Box<dyn Future<Output = Result<ZmtpConnection, Disconnect>> + Send>>),
    Open(Box<ZmtpConnection>),
}

impl SubDialer {
    async fn next(&mut self) -> SubEvent {
        loop {
            match &mut self.link {
                SubLink::Waiting(sleep) => {
                    sleep.await;
                    self.link = SubLink::Opening(Box::pin(self.dial.clone().open()));
                }
                SubLink::Opening(attempt) => match attempt.await {
                    Ok(mut connection) => {
                        self.topics
                            .iter()
                            .for_each(|topic| connection.subscribe(topic));
                        self.link = SubLink::Open(Box::new(connection));
                        self.since = Instant::now();
                        self.peers += 1;
                        return SubEvent::Connected {
                            peer: self.peers,
                            address: None,
                        };
                    }
                    Err(reason) => {
                        self.wait(Duration::ZERO);
                        return SubEvent::Unreachable {
                            reason: reason.to_string(),
                            refused: None,
                        };
                    }
                },
                SubLink::Open(connection) => match connection.next().await {
                    Ok(Incoming::Message(frames)) => {
                        return SubEvent::Message {
                            peer: self.peers,
                            frames,
                        };
                    }
                    Ok(_) => {}
                    Err(reason) => {
                        self.wait(self.since.elapsed());
                        return SubEvent::Disconnected {
                            peer: self.peers,
                            reason: reason.to_string(),
                        };
                    }
                },
            }
        }
    }

    fn wait(&mut self, lasted: Duration) {
        self.link = SubLink::Waiting(Box::pin(tokio::time::sleep(self.backoff.after(lasted))));
    }
}

impl fmt::Debug for SubLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting(_) => "Waiting",
            Self::Opening(_) => "Opening",
            Self::Open(_) => "Open",
        })
    }
}

#[derive(Clone, Debug)]
struct DialTarget {
    address: Address,
    limits: Limits,
}

impl DialTarget {
    async fn open(self) -> Result<ZmtpConnection, Disconnect> {
        let stream = self
            .limits
            .destinations
            .connect(&self.address, self.limits.handshake_timeout)
            .await?;
        ZmtpConnection::open(stream, SocketType::Sub, &self.limits).await
    }
}

#[derive(Debug)]
struct BoundSub {
    queue: mpsc::Receiver<QueuedEvent>,
    _accepting: AcceptLoop,
}

/// An event, and the permits for its bytes until the reader takes it.
#[derive(Debug)]
struct QueuedEvent {
    event: SubEvent,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Sender of connection events to a bound socket's queue.
#[derive(Debug)]
struct EventSender {
    queue: mpsc::Sender<QueuedEvent>,
    byte_permits: Arc<Semaphore>,
}

impl EventSender {
    /// Waits for room in the queue. A message larger than the whole queue waits until nothing else
    /// is queued. `false`: the socket was dropped.
    async fn send(&self, event: SubEvent) -> bool {
        let bytes = match &event {
            SubEvent::Message { frames, .. } => frames
                .iter()
                .map(Bytes::len)
                .sum::<usize>()
                .min(QUEUE_BYTES),
            _ => 0,
        };
        // The semaphore is never closed.
        let permit = Arc::clone(&self.byte_permits)
            .acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX))
            .await
            .ok();
        self.queue
            .send(QueuedEvent {
                event,
                _permit: permit,
            })
            .await
            .is_ok()
    }

    /// Reports a peer that is not served.
    async fn refuse(&self, address: IpAddr) {
        let reason = Disconnect::Refused(address.to_canonical()).to_string();
        let refused = Some(address);
        self.send(SubEvent::Unreachable { reason, refused }).await;
    }
}

/// Forwards the messages of one connected publisher.
async fn serve(peer: Peer, topics: Vec<Bytes>, limits: Limits, events: EventSender) {
    let (number, address) = (peer.number, peer.address());
    // A publisher that is silent for hours is normal, and one that vanished without a word would
    // keep its stream.
    if let Err(error) = peer.stream.keep_alive() {
        tracing::debug!(%error, "no keep-alive on a publisher's connection");
    }
    let mut connection = match ZmtpConnection::accept(peer, SocketType::Sub, &limits).await {
        Ok((connection, _)) => connection,
        Err(reason) => {
            events
                .send(SubEvent::Unreachable {
                    reason: reason.to_string(),
                    refused: None,
                })
                .await;
            return;
        }
    };
    topics.iter().for_each(|topic| connection.subscribe(topic));
    if !events
        .send(SubEvent::Connected {
            peer: number,
            address,
        })
        .await
    {
        return;
    }
    let Some(reason) = pass_on(number, &mut connection, &events).await else {
        return;
    };
    // The slot and the bytes belong to another connection by now.
    drop(connection);
    events
        .send(SubEvent::Disconnected {
            peer: number,
            reason: reason.to_string(),
        })
        .await;
}

/// Forwards until the connection ends and returns the reason; `None`: the socket was dropped.
async fn pass_on(
    peer: u64,
    connection: &mut ZmtpConnection,
    events: &EventSender,
) -> Option<Disconnect> {
    loop {
        let frames = match connection.next().await {
            Ok(Incoming::Message(frames)) => frames,
            Ok(_) => continue,
            Err(reason) => return Some(reason),
        };
        match connection
            .unless_closing(events.send(SubEvent::Message { peer, frames }))
            .await
        {
            Ok(true) => {}
            Ok(false) => return None,
            Err(reason) => return Some(reason),
        }
    }
}
