//! The handle of the replicas for the rest of the process.

use std::{fmt, io, sync::Arc, time::Duration};

use api::{ReplicaReports, SharedSnapshot};
use bytes::Bytes;
use config::{ReplicaMode, ReplicasSection, Secret};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use kv_blocks::Moment;
use net::{Clock, TrustError, TrustRoots};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use routing::{ReleasedRequest, Router};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::JoinHandle,
    time::timeout,
};

#[cfg(feature = "nats")]
use crate::transport::{NatsTransport, ReplicaSubjects};
use crate::{
    Feed, NoteQueue, ReplicaIdentity, SharedNote, WorkerDirectory,
    exchange::{Exchange, PageRequest},
    peers::{OwnIdentity, PeerTable},
    report,
    telemetry::ReplicaTelemetry,
    transport::{FeedHub, PeerAddressError, PeerTransport, PeerTransportSpec, Transport},
    wire,
};

/// Most changes that wait to be sent: more than a second of a busy router.
const MOST_CHANGES: usize = 65_536;
/// Most requests for pages that wait.
const MOST_REQUESTS: usize = 64;
/// Most memberships of an index whose digest is reported: it holds up the index for a millisecond.
const MOST_DIGESTED: u64 = 200_000;
/// Longest wait for an own page.
const PAGE_PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for the end of the exchange.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// A replica's part in the shared log of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedEvents {
    /// Messages that it has not taken yet.
    pub lag_messages: u64,
    /// Streams that it publishes, as `worker/rank`.
    pub owns_streams: Vec<String>,
    /// The snapshot that the replicas share.
    pub snapshot: Option<SharedSnapshot>,
}

/// Where the exchange delivers what concerns others than the router.
pub trait LoadSink: fmt::Debug + Send + Sync {
    /// Delivers queued requests that may start now.
    fn released(&self, released: Vec<ReleasedRequest>);
    /// Delivers a note of a peer.
    fn note(&self, note: SharedNote);
    /// Delivers the number of routers that share the limits of tenants, this one included.
    fn routers(&self, routers: u32);
    /// Returns what this replica has to do with the shared log of events, if there is one.
    fn shared_events(&self) -> SharedEvents {
        SharedEvents::default()
    }
    /// Returns a copy of the block index with the names of its workers, for a new replica. Blocks.
    ///
    /// # Errors
    ///
    /// The index was given up.
    fn copy_index(&self) -> io::Result<Vec<u8>>;
    /// Returns the number of memberships in the block index.
    fn memberships(&self) -> u64;
    /// Returns the digest of the block index over all workers. Takes some 5 ns a membership, under
    /// the index's lock.
    fn index_digest(&self) -> u64;
}

/// What the exchange connects.
#[derive(Debug)]
pub struct ReplicaParts {
    /// Section `replicas`.
    pub settings: ReplicasSection,
    /// This replica.
    pub identity: ReplicaIdentity,
    /// The router.
    pub router: Arc<Router>,
    /// The names of workers.
    pub workers: Arc<dyn WorkerDirectory>,
    /// The rest of the process.
    pub sink: Arc<dyn LoadSink>,
    /// The notes for the peers.
    pub notes: NoteQueue,
    /// The connection to the bus, for mode `nats`.
    #[cfg(feature = "nats")]
    pub bus: Option<Arc<nats_client::SharedConnection>>,
    /// Token of the peers' admin listeners, the same as this process's own.
    pub token: Option<Secret>,
    /// The clock.
    pub clock: Clock,
}

/// Why the exchange cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaStartError {
    /// A peer's address is none.
    #[error("replicas.peers: {0}")]
    Peer(#[from] PeerAddressError),
    /// The certificate authorities cannot be used.
    #[error("replicas.ca: {0}")]
    Trust(#[from] TrustError),
    /// The program has no NATS.
    #[cfg(not(feature = "nats"))]
    #[error(
        "replicas.mode is nats, and this program was built without NATS: build it with the feature `nats`"
    )]
    NotBuilt,
    /// The token cannot be sent.
    #[error(
        "the admin token cannot stand in a header: write printable characters into admin.token_file"
    )]
    Token,
}

/// The parts that the task and the handle share.
#[derive(Debug)]
pub(crate) struct ReplicaCore {
    pub(crate) settings: ReplicasSection,
    pub(crate) identity: ReplicaIdentity,
    pub(crate) router: Arc<Router>,
    pub(crate) workers: Arc<dyn WorkerDirectory>,
    pub(crate) sink: Arc<dyn LoadSink>,
    pub(crate) clock: Clock,
    pub(crate) started: Moment,
    pub(crate) peers: Mutex<PeerTable>,
    pub(crate) notes: NoteQueue,
    /// Signals changes of the load to send.
    pub(crate) filled: Arc<Notify>,
    pub(crate) telemetry: ReplicaTelemetry,
}

impl ReplicaCore {
    pub(crate) fn up_time(&self) -> Duration {
        self.clock.now().since(self.started)
    }

    #[cfg(feature = "nats")]
    fn subjects(&self) -> ReplicaSubjects {
        ReplicaSubjects::new(&self.settings.namespace, &self.settings.component)
    }

    /// Returns the digest of the block index; `None`: it is too large to be read every time.
    pub(crate) fn index_digest(&self) -> Option<u64> {
        (self.sink.memberships() <= MOST_DIGESTED).then(|| self.sink.index_digest())
    }
}

/// The replicas of this process's fleet, itself among them.
#[derive(Debug)]
pub struct Replicas {
    core: Arc<ReplicaCore>,
    /// The running exchange; `None`: every router is alone.
    exchange: Option<RunningExchange>,
    /// Held while the index is copied, which takes as much memory again.
    copying: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct RunningExchange {
    hub: FeedHub,
    requests: mpsc::Sender<PageRequest>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Replicas {
    /// Starts the exchange if the settings ask for one. Call inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// An address, a certificate authority or the token cannot be used.
    pub fn start(parts: ReplicaParts, registry: &mut Registry) -> Result<Self, ReplicaStartError> {
        let filled = Arc::new(Notify::new());
        let shares_load = Self::shares_load(&parts.settings);
        let own = OwnIdentity {
            id: parts.identity.id,
            settings: parts.identity.settings,
            shares_load,
        };
        let core = Arc::new(ReplicaCore {
            peers: Mutex::new(PeerTable::new(own, parts.settings.peer_ttl)),
            started: parts.clock.now(),
            settings: parts.settings,
            identity: parts.identity,
            router: parts.router,
            workers: parts.workers,
            sink: parts.sink,
            clock: parts.clock,
            notes: parts.notes,
            filled,
            telemetry: ReplicaTelemetry::registered(registry),
        });
        let hub = FeedHub::default();
        let transport = match core.settings.mode {
            ReplicaMode::Alone => None,
            ReplicaMode::Peers => {
                let spec = peer_spec(
                    &core.settings,
                    core.identity.id,
                    parts.token.as_ref().map(Secret::expose),
                )?;
                Some(Transport::Peers(PeerTransport::start(spec, hub.clone())))
            }
            #[cfg(feature = "nats")]
            ReplicaMode::Nats => parts.bus.as_ref().map(|bus| {
                let subjects = core.subjects();
                Transport::Nats(Box::new(NatsTransport::new(
                    bus,
                    subjects,
                    core.identity.id,
                )))
            }),
            #[cfg(not(feature = "nats"))]
            ReplicaMode::Nats => return Err(ReplicaStartError::NotBuilt),
        };
        let exchange = transport.map(|transport| {
            if shares_load {
                let filled = Arc::clone(&core.filled);
                core.router
                    .share_load(MOST_CHANGES, Arc::new(move || filled.notify_one()));
            }
            RunningExchange::start(Arc::clone(&core), transport, hub)
        });
        let copying = tokio::sync::Mutex::default();
        Ok(Self {
            core,
            exchange,
            copying,
        })
    }

    /// Returns whether routers with these settings share their load.
    pub fn shares_load(settings: &ReplicasSection) -> bool {
        settings.load_sync && settings.mode != ReplicaMode::Alone
    }

    /// Returns this replica's id in its written form.
    pub fn id(&self) -> String {
        crate::identity::ShownId(self.core.identity.id).to_string()
    }

    /// Returns the messages of this replica from now on; `None`: it sends none.
    pub fn feed(&self) -> Option<Feed> {
        let exchange = self.exchange.as_ref()?;
        let reads_feeds = self.core.settings.mode == ReplicaMode::Peers;
        reads_feeds.then(|| exchange.hub.feed())
    }

    /// Returns a page of this replica's open requests with ids above `after`; `None`: it shares
    /// none, or it is ending.
    pub async fn state_page(&self, after: u64) -> Option<Bytes> {
        let exchange = self.exchange.as_ref()?;
        let (reply, page) = oneshot::channel();
        exchange
            .requests
            .try_send(PageRequest { after, reply })
            .ok()?;
        let page = timeout(PAGE_PATIENCE, page).await.ok()?.ok()?;
        Some(wire::encode(&page))
    }

    /// Returns a copy of the block index for a new replica; `None`: peers copy nothing here, another
    /// copy is being made, or the index was given up.
    pub async fn index_copy(&self) -> Option<Bytes> {
        if self.core.settings.mode != ReplicaMode::Peers {
            return None;
        }
        let _one_at_a_time = self.copying.try_lock().ok()?;
        let sink = Arc::clone(&self.core.sink);
        let copied = runtime::spawn_blocking(move || sink.copy_index()).await;
        match copied {
            Ok(Ok(bytes)) => Some(bytes.into()),
            Ok(Err(error)) => {
                tracing::error!(%error, "the index could not be copied for another replica");
                None
            }
            Err(error) => {
                tracing::error!(%error, "the copy of the index ended with a panic");
                None
            }
        }
    }

    /// Returns the report for operators.
    pub fn report(&self) -> ReplicaReports {
        report::report(&self.core)
    }

    /// Ends the exchange: the peers are told first.
    pub async fn stop(&self) {
        let Some(exchange) = &self.exchange else {
            return;
        };
        exchange.stop.send_replace(true);
        let task = exchange.task.lock().take();
        if let Some(task) = task {
            let _ = timeout(END_PATIENCE, task).await;
        }
    }
}

impl RunningExchange {
    fn start(core: Arc<ReplicaCore>, transport: Transport, hub: FeedHub) -> Self {
        let (requests, received) = mpsc::channel(MOST_REQUESTS);
        let (stop, stopped) = watch::channel(false);
        let exchange = Exchange::new(core, transport, received);
        let running = supervision::contain("replica_exchange", exchange.run(stopped));
        let task = runtime::spawn(async {
            let _ended = running.await;
        });
        Self {
            hub,
            requests,
            stop,
            task: Mutex::new(Some(task)),
        }
    }
}

pub(crate) fn peer_spec(
    settings: &ReplicasSection,
    own_id: u64,
    token: Option<&str>,
) -> Result<PeerTransportSpec, ReplicaStartError> {
    let peers = settings.peers.iter().map(|peer| peer.parse());
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| ReplicaStartError::Token)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let trust = settings.ca.as_deref();
    Ok(PeerTransportSpec {
        own_id,
        peers: peers.collect::<Result<_, _>>()?,
        headers,
        trust: trust.map(TrustRoots::with_authorities_in).transpose()?,
        silence: settings.peer_ttl,
    })
}
