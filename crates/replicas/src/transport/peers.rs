//! HTTP between replicas: each reads the message feed of every other one, and fetches their load
//! from the same admin listener.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use net::{TrustRoots, WorkerUrl, fetch};
use parking_lot::Mutex;
use resilience::Backoff;
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

use super::{FeedHub, TransportEvent, feed::FrameSplitter, peer_addresses::PeerAddress};
use crate::{
    REPLICA_HEADER,
    wire::{self, MAX_MESSAGE, StatePage},
};

/// Path of the feed on an admin listener.
pub(crate) const FEED: &str = "/admin/replicas/feed";
/// Path of a page of open requests.
const STATE: &str = "/admin/replicas/state";
/// Time limit of connecting, and of a page.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which names are resolved again.
const RESOLVE: Duration = Duration::from_secs(5);
/// Pause before a replica that turned out to be this one is asked again: another may get its
/// address.
const SELF_PAUSE: Duration = Duration::from_secs(30);
/// Most received messages that wait.
const MOST_WAITING: usize = 256;

/// What the transport needs to know.
#[derive(Debug)]
pub(crate) struct PeerTransportSpec {
    /// This replica's id.
    pub(crate) own_id: u64,
    /// Where the other replicas are; own addresses may be among them.
    pub(crate) peers: Vec<PeerAddress>,
    /// Sent with each request.
    pub(crate) headers: HeaderMap,
    /// Trusted authorities for `https` peers; `None`: those of this machine.
    pub(crate) trust: Option<TrustRoots>,
    /// Longest silence of a feed.
    pub(crate) silence: Duration,
}

/// Messages over HTTP.
#[derive(Debug)]
pub(crate) struct PeerTransport {
    hub: FeedHub,
    arrivals: mpsc::Receiver<TransportEvent>,
    fetcher: PageFetcher,
    _tasks: JoinSet<()>,
}

impl PeerTransport {
    /// Starts to read the feeds of all peers.
    pub(crate) fn start(spec: PeerTransportSpec, hub: FeedHub) -> Self {
        let (sender, arrivals) = mpsc::channel(MOST_WAITING);
        let fetcher = PageFetcher {
            headers: spec.headers,
            found: Arc::default(),
        };
        let mut tasks = JoinSet::new();
        for address in spec.peers {
            let reader = FeedReader {
                own_id: spec.own_id,
                trust: spec.trust.clone(),
                silence: spec.silence,
                fetcher: fetcher.clone(),
                sender: sender.clone(),
            };
            tasks.spawn(async move {
                supervision::supervise("replica_feeds", || follow_address(&address, &reader)).await
            });
        }
        Self {
            hub,
            arrivals,
            fetcher,
            _tasks: tasks,
        }
    }

    pub(crate) fn publish(&self, message: Bytes) {
        self.hub.send(&message);
    }

    pub(crate) async fn next(&mut self) -> TransportEvent {
        match self.arrivals.recv().await {
            Some(event) => event,
            // Without peers there are no readers.
            None => std::future::pending().await,
        }
    }

    pub(crate) fn fetcher(&self) -> PageFetcher {
        self.fetcher.clone()
    }

    pub(crate) fn is_connected(&self) -> bool {
        !self.fetcher.found.lock().is_empty()
    }
}

/// Reads the feed of one peer after the other, for every address of an entry.
async fn follow_address(address: &PeerAddress, reader: &FeedReader) {
    let mut readers = JoinSet::new();
    let mut running: HashMap<String, AbortHandle> = HashMap::new();
    loop {
        match address.resolve().await {
            Ok(urls) => {
                let listed: HashSet<String> = urls.iter().map(ToString::to_string).collect();
                running.retain(|url, task| {
                    let stays = listed.contains(url);
                    if !stays {
                        task.abort();
                    }
                    stays
                });
                for url in urls {
                    let reader = reader.clone();
                    running
                        .entry(url.to_string())
                        .or_insert_with(|| readers.spawn(async move { reader.follow(url).await }));
                }
            }
            // The addresses known so far stay.
            Err(error) => tracing::debug!(%address, %error, "replica name not resolved"),
        }
        sleep(RESOLVE).await;
    }
}

#[derive(Clone)]
struct FeedReader {
    own_id: u64,
    trust: Option<TrustRoots>,
    silence: Duration,
    fetcher: PageFetcher,
    sender: mpsc::Sender<TransportEvent>,
}

/// Why a feed ended.
#[derive(Debug, thiserror::Error)]
enum FeedError {
    #[error(transparent)]
    Fetch(#[from] fetch::FetchError),
    #[error("{peer} answered {FEED} with status {status}: {hint}")]
    Status {
        peer: String,
        status: StatusCode,
        hint: &'static str,
    },
    #[error("{peer} ended the feed: it has stopped, or this replica was too slow")]
    Ended { peer: String },
    #[error("{peer} sent nothing for {limit:?}")]
    Silent { peer: String, limit: Duration },
    #[error("{peer} sent a message of more than {MAX_MESSAGE} bytes")]
    TooLong { peer: String },
    #[error("this replica itself")]
    Itself,
}

impl FeedReader {
    async fn follow(&self, url: WorkerUrl) {
        let url = match &self.trust {
            Some(trust) => url.with_trust(trust.clone()),
            None => url,
        };
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        loop {
            let error = match self.read(&url).await {
                Ok(never) => match never {},
                Err(FeedError::Itself) => {
                    sleep(SELF_PAUSE).await;
                    continue;
                }
                Err(error) => error,
            };
            tracing::debug!(peer = %url, %error, "replica feed not read");
            self.fetcher.found.lock().retain(|_, known| *known != url);
            sleep(backoff.pause().mul_f64(0.5 + 0.5 * runtime::chance())).await;
        }
    }

    async fn read(&self, url: &WorkerUrl) -> Result<std::convert::Infallible, FeedError> {
        let peer = || url.display_name();
        let mut reply = fetch::open(url, FEED, &self.fetcher.headers, PATIENCE).await?;
        if reply.status != StatusCode::OK {
            let hint = match reply.status {
                StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::TOO_MANY_REQUESTS => "replicas need the same admin.token_file",
                StatusCode::NOT_FOUND => {
                    "its replicas.mode is not peers, or it is no admin listener"
                }
                _ => "check the address in replicas.peers",
            };
            let status = reply.status;
            let peer = peer();
            return Err(FeedError::Status { peer, status, hint });
        }
        let id = reply.headers.get(REPLICA_HEADER);
        let id = id.and_then(|id| u64::from_str_radix(id.to_str().ok()?, 16).ok());
        if id == Some(self.own_id) {
            return Err(FeedError::Itself);
        }
        if let Some(id) = id {
            self.fetcher.found.lock().insert(id, url.clone());
        }
        let mut splitter = FrameSplitter::default();
        loop {
            let read = timeout(self.silence, reply.next()).await;
            let Ok(read) = read else {
                let (peer, limit) = (peer(), self.silence);
                return Err(FeedError::Silent { peer, limit });
            };
            let Some(bytes) = read? else {
                return Err(FeedError::Ended { peer: peer() });
            };
            splitter.push(&bytes);
            loop {
                match splitter.next() {
                    Ok(Some(message)) => self.deliver(&message).await,
                    Ok(None) => break,
                    Err(_) => return Err(FeedError::TooLong { peer: peer() }),
                }
            }
        }
    }

    async fn deliver(&self, message: &[u8]) {
        let bytes = message.len();
        let event = match wire::decode(message) {
            Ok(message) => TransportEvent::Message {
                message: Box::new(message),
                bytes,
            },
            Err(_) => TransportEvent::Malformed,
        };
        // The receiver ends with the tasks.
        let _ = self.sender.send(event).await;
    }
}

/// Fetches pages of open requests.
#[derive(Clone, Debug)]
pub(crate) struct PageFetcher {
    headers: HeaderMap,
    /// Where each connected peer is; one entry per feed.
    found: Arc<Mutex<HashMap<u64, WorkerUrl>>>,
}

impl PageFetcher {
    pub(crate) async fn page(&self, peer: u64, after: u64) -> Result<StatePage, String> {
        let url = self.found.lock().get(&peer).cloned();
        let url = url.ok_or_else(|| "the feed of this peer has ended".to_owned())?;
        let path = format!("{STATE}?after={after}");
        let reply = fetch::get(&url, &path, &self.headers, PATIENCE, MAX_MESSAGE).await;
        let reply = reply.map_err(|error| error.to_string())?;
        if reply.status != StatusCode::OK {
            return Err(format!(
                "{url} answered {STATE} with status {}",
                reply.status
            ));
        }
        wire::decode(&reply.body).map_err(|error| error.to_string())
    }
}
