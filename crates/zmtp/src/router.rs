//! ROUTER: many peers, each addressed by its routing id.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use net::{ListenError, listen};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::{
    Disconnect, Endpoint, Limits,
    accept::{AcceptLoop, Peer},
    codec::{Incoming, SocketType, encode_message},
    connection::ZmtpConnection,
};

/// Queue limit per peer in messages. When full, [`Router::send`] waits.
const QUEUE: usize = 64;
/// Time that [`Router::send`] waits for a peer that takes nothing, before the peer is dropped.
const PATIENCE: Duration = Duration::from_secs(5);

/// A peer of a [`Router`]: the routing id it gave, or an assigned one (a zero byte and four more).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub Bytes);

/// A bound ROUTER. Dropping it ends all connections.
#[derive(Debug)]
pub struct Router {
    received: mpsc::Receiver<(PeerId, Vec<Bytes>)>,
    peers: Arc<Peers>,
    _accepting: AcceptLoop,
}

type Peers = Mutex<HashMap<PeerId, mpsc::Sender<Bytes>>>;

impl Router {
    /// Binds a socket for peers. The returned endpoint has the port that the system chose.
    pub async fn bind(
        endpoint: &Endpoint,
        limits: Limits,
    ) -> Result<(Self, Endpoint), ListenError> {
        let listener = listen(&endpoint.to_listen_addr()).await?;
        let bound = Endpoint::from(listener.address().address());
        let peers = Arc::new(Peers::default());
        // When full, connections stop reading, and TCP slows their peers.
        let (inbox, received) = mpsc::channel(16);
        let known = Arc::clone(&peers);
        let accepting = AcceptLoop::start(listener, limits.max_peers, move |peer| {
            let (known, limits, inbox) = (Arc::clone(&known), limits.clone(), inbox.clone());
            async move {
                if let Err(reason) = serve(peer, &limits, known, inbox).await {
                    tracing::debug!(%reason, "router peer left");
                }
            }
        });
        Ok((
            Self {
                received,
                peers,
                _accepting: accepting,
            },
            bound,
        ))
    }

    /// Returns the next message of any peer, without a frame for its routing id. May be cancelled
    /// without losing anything.
    pub async fn recv(&mut self) -> (PeerId, Vec<Bytes>) {
        match self.received.recv().await {
            Some(message) => message,
            // The accept loop holds a sender for as long as this socket lives.
            None => std::future::pending().await,
        }
    }

    /// Sends to one peer. Waits while the peer's queue is full, up to 5 s, after which the peer is
    /// dropped. `false`: there is no such peer (any longer), the message is lost.
    pub async fn send<F: AsRef<[u8]>>(&self, peer: &PeerId, frames: &[F]) -> bool {
        let queue = self.peers.lock().get(peer).cloned();
        let Some(queue) = queue else { return false };
        let mut encoded = BytesMut::new();
        encode_message(frames, &mut encoded);
        if let Ok(sent) = tokio::time::timeout(PATIENCE, queue.send(encoded.freeze())).await {
            return sent.is_ok();
        }
        self.peers
            .lock()
            .retain(|known, entry| known != peer || !entry.same_channel(&queue));
        false
    }
}

async fn serve(
    peer: Peer,
    limits: &Limits,
    peers: Arc<Peers>,
    inbox: mpsc::Sender<(PeerId, Vec<Bytes>)>,
) -> Result<(), Disconnect> {
    let number = peer.number;
    let (mut connection, identity) =
        ZmtpConnection::accept(peer, SocketType::Router, limits).await?;
    let peer = if identity.is_empty() {
        made_up(number)
    } else {
        PeerId(identity)
    };
    let (queue, mut messages) = mpsc::channel::<Bytes>(QUEUE);
    {
        let mut known = peers.lock();
        // The first holder of a routing id keeps it: a later peer must not receive another peer's
        // answers.
        if known.get(&peer).is_some_and(|entry| !entry.is_closed()) {
            tracing::debug!("routing id is in use, newcomer refused");
            return Ok(());
        }
        known.insert(peer.clone(), queue.clone());
    }
    let _leave = LeaveGuard {
        peer: peer.clone(),
        queue: queue.downgrade(),
        peers,
    };
    drop(queue);
    loop {
        let has_capacity = connection.has_capacity();
        tokio::select! {
            turn = connection.turn() => {
                let Some(Incoming::Message(frames)) = turn? else { continue };
                if inbox.send((peer.clone(), frames)).await.is_err() {
                    return Ok(());
                }
            }
            message = messages.recv(), if has_capacity => match message {
                Some(message) => connection.queue(&message),
                // Dropped because it took nothing: the rest of its queue is discarded.
                None => return Ok(()),
            },
        }
    }
}

/// Assigns a routing id that starts with a zero byte, which peers must not use.
fn made_up(number: u64) -> PeerId {
    let mut id = BytesMut::with_capacity(5);
    id.put_u8(0);
    id.put_slice(&number.to_be_bytes()[4..]);
    PeerId(id.freeze())
}

struct LeaveGuard {
    peer: PeerId,
    queue: mpsc::WeakSender<Bytes>,
    peers: Arc<Peers>,
}

impl Drop for LeaveGuard {
    fn drop(&mut self) {
        let Some(queue) = self.queue.upgrade() else {
            return;
        };
        self.peers
            .lock()
            .retain(|known, entry| known != &self.peer || !entry.same_channel(&queue));
    }
}
