//! Connection slots of one listener.
//!
//! A connection is idle while it carries no request. When all slots are taken, a new connection
//! gets the slot of the connection that has been idle longest; when none is idle it waits in the
//! backlog. One address may have requests in progress on at most seven eighths of the slots: its
//! further requests wait, and their connections count as idle meanwhile, so that another address
//! always finds a slot.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::PeerAddress;

/// Divisor of the slots that one address leaves to others. With fewer slots than this, none is
/// left.
const RESERVE: usize = 8;

/// The slots. Made for one accept loop: only one task may wait for them.
#[derive(Debug)]
pub struct ConnectionTable {
    most: usize,
    share: usize,
    state: Mutex<TableState>,
    /// Signals that a slot may be free, or a connection idle.
    changed: Notify,
}

#[derive(Debug, Default)]
struct TableState {
    /// Numbers connections, and orders them by the start of their idle time.
    next: u64,
    /// At most `most`, plus connections admitted while the listener stopped.
    slots: HashMap<u64, SlotState>,
    /// Connections that were signalled to close and are still open.
    closing: usize,
    /// Idle connections that were not signalled to close, the longest idle first.
    idle: BTreeMap<u64, u64>,
    /// The idle connections by address.
    idle_by_peer: BTreeSet<(PeerAddress, u64)>,
    /// Addresses that have connections.
    peers: HashMap<PeerAddress, PeerShare>,
    /// The address that has more than half of the slots.
    majority: Option<PeerAddress>,
}

#[derive(Debug)]
struct SlotState {
    peer: PeerAddress,
    /// Start of its idle time, in the order of all; `None`: it carries a request.
    idle: Option<u64>,
    closing: bool,
    close: Arc<Notify>,
}

#[derive(Debug)]
struct PeerShare {
    connections: usize,
    /// One permit per request that the address may have in progress.
    request_permits: Arc<Semaphore>,
}

/// The result of a request for a slot.
enum SlotAdmission {
    Admitted(ConnectionSlot),
    /// A slot will become free, or a connection idle: try again then.
    Later,
    /// Its address uses its full share, and none of its connections is idle.
    Refused,
}

impl ConnectionTable {
    /// Creates a table for `most` connections.
    pub fn new(most: usize) -> Arc<Self> {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self {
            most,
            share: most - most / RESERVE,
            state: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Resolves when a connection accepted now would get a slot: until then it is better off in the
    /// backlog.
    pub async fn has_capacity(&self) {
        loop {
            {
                let state = self.state.lock();
                if state.slots.len() < self.most || !state.idle.is_empty() {
                    return;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Assigns a slot to an accepted connection; waits for the connection that has to yield.
    /// `None`: its address uses its full share, and no connection of that address is idle.
    /// Cancelling only affects which connections are signalled to close.
    pub async fn admit(self: &Arc<Self>, peer: PeerAddress) -> Option<ConnectionSlot> {
        loop {
            match self.try_admit(peer) {
                SlotAdmission::Admitted(slot) => return Some(slot),
                SlotAdmission::Refused => return None,
                SlotAdmission::Later => self.changed.notified().await,
            }
        }
    }

    /// Assigns a slot above the limit, for the last connection of a listener that stops.
    pub fn admit_last(self: &Arc<Self>, peer: PeerAddress) -> ConnectionSlot {
        let mut state = self.state.lock();
        self.insert(&mut state, peer)
    }

    fn try_admit(self: &Arc<Self>, peer: PeerAddress) -> SlotAdmission {
        let mut state = self.state.lock();
        if state.slots.len() < self.most {
            return SlotAdmission::Admitted(self.insert(&mut state, peer));
        }
        if state.slots.len() - state.closing < self.most {
            return SlotAdmission::Later;
        }
        let in_use = state.peers.get(&peer).map_or(0, |peer| peer.connections);
        let yields = if in_use >= self.share {
            state.idle_of(peer)
        } else {
            state.longest_idle()
        };
        match yields {
            Some(id) => state.request_close(id),
            None if in_use >= self.share => return SlotAdmission::Refused,
            None => {}
        }
        SlotAdmission::Later
    }

    fn insert(self: &Arc<Self>, state: &mut TableState, peer: PeerAddress) -> ConnectionSlot {
        let id = state.number();
        let close = Arc::new(Notify::new());
        state.slots.insert(
            id,
            SlotState {
                peer,
                idle: None,
                closing: false,
                close: Arc::clone(&close),
            },
        );
        state.set_idle(id);
        let share = self.share;
        let known = state.peers.entry(peer).or_insert_with(|| PeerShare {
            connections: 0,
            request_permits: Arc::new(Semaphore::new(share)),
        });
        known.connections += 1;
        let turns = Arc::clone(&known.request_permits);
        if known.connections > self.most / 2 {
            state.majority = Some(peer);
        }
        ConnectionSlot {
            table: Arc::clone(self),
            id,
            peer,
            address: None,
            request_permits: turns,
            close,
        }
    }

    fn release(&self, id: u64) {
        let mut state = self.state.lock();
        state.set_busy(id);
        let Some(slot) = state.slots.remove(&id) else {
            return;
        };
        let left = state.peers.get_mut(&slot.peer).map_or(0, |peer| {
            peer.connections -= 1;
            peer.connections
        });
        if left == 0 {
            state.peers.remove(&slot.peer);
        }
        if left <= self.most / 2 && state.majority == Some(slot.peer) {
            state.majority = None;
        }
        drop(state);
        self.changed.notify_one();
    }
}

impl TableState {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn longest_idle(&self) -> Option<u64> {
        // The address with most of the slots yields first.
        self.majority
            .and_then(|peer| self.idle_of(peer))
            .or_else(|| self.idle.values().next().copied())
    }

    fn idle_of(&self, peer: PeerAddress) -> Option<u64> {
        let (_, since) = self
            .idle_by_peer
            .range((peer, 0)..=(peer, u64::MAX))
            .next()?;
        self.idle.get(since).copied()
    }

    fn request_close(&mut self, id: u64) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        slot.closing = true;
        slot.close.notify_one();
        self.closing += 1;
        if let Some(since) = slot.idle.take() {
            self.idle.remove(&since);
            self.idle_by_peer.remove(&(slot.peer, since));
        }
    }

    fn set_busy(&mut self, id: u64) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        if std::mem::take(&mut slot.closing) {
            self.closing -= 1;
        }
        if let Some(since) = slot.idle.take() {
            self.idle.remove(&since);
            self.idle_by_peer.remove(&(slot.peer, since));
        }
    }

    fn set_idle(&mut self, id: u64) {
        let now = self.number();
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        if slot.closing {
            return;
        }
        if let Some(since) = slot.idle.replace(now) {
            self.idle.remove(&since);
            self.idle_by_peer.remove(&(slot.peer, since));
        }
        self.idle.insert(now, id);
        self.idle_by_peer.insert((slot.peer, now));
    }
}

/// A connection's slot, idle at first. Dropping it frees the slot.
#[derive(Debug)]
pub struct ConnectionSlot {
    table: Arc<ConnectionTable>,
    id: u64,
    peer: PeerAddress,
    /// The whole address; `None` for a unix socket.
    address: Option<IpAddr>,
    request_permits: Arc<Semaphore>,
    close: Arc<Notify>,
}

impl ConnectionSlot {
    /// Sets the whole address of the connection's peer.
    #[must_use]
    pub fn with_address(mut self, address: Option<SocketAddr>) -> Self {
        self.address = address.map(|address| address.ip().to_canonical());
        self
    }

    /// Returns the whole address of the connection's peer; `None` for a unix socket.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Returns the address by which the shares of the connection's peer are counted.
    pub fn peer(&self) -> PeerAddress {
        self.peer
    }

    /// Returns a permit for one more request in progress of the connection's address, if it may
    /// have one now.
    pub fn try_acquire_request_slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.request_permits).try_acquire_owned().ok()
    }

    /// Waits until the connection's address may have one more request in progress, and counts the
    /// request until the permit is dropped.
    pub async fn acquire_request_slot(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.request_permits).acquire_owned().await.ok()
    }

    /// Marks a request as in progress: the connection keeps its slot, even if it was signalled to
    /// close and is still open.
    pub fn set_busy(&self) {
        let mut state = self.table.state.lock();
        let closing = state.closing;
        state.set_busy(self.id);
        if state.closing < closing {
            // Another connection has to yield.
            self.table.changed.notify_one();
        }
    }

    /// Marks the connection as idle from now on.
    pub fn set_idle(&self) {
        self.table.state.lock().set_idle(self.id);
        self.table.changed.notify_one();
    }

    /// Resolves when the idle connection has to yield its slot.
    pub async fn must_close(&self) {
        loop {
            self.close.notified().await;
            if self
                .table
                .state
                .lock()
                .slots
                .get(&self.id)
                .is_none_or(|slot| slot.closing)
            {
                return;
            }
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.table.release(self.id);
    }
}
