//! The other replicas: who is there, which of their changes were applied, and when their whole load
//! has to be fetched.
//!
//! A peer's changes are numbered. A missing number, or a digest of the peer's load that differs
//! from what was applied here, makes this replica fetch the peer's whole load; until it arrives the
//! later changes are held. So a lost message is repaired within one digest interval and one fetch,
//! whatever was in it.
//!
//! Pure: messages, digests and times are arguments; [`PeerAction`]s are carried out by the caller,
//! in order.
//!
//! **Invariant**: at most [`PeerTable::MOST`] peers, each with at most [`fetch::MOST_HELD`] held messages.
//! **Invariant**: a peer of another version or with other settings contributes no load.

mod fetch;
mod peer;

use std::{collections::BTreeMap, time::Duration};

use kv_blocks::Moment;
use routing::{LoadDigest, PeerId};

pub(crate) use peer::{Peer, PeerState};

use crate::wire::{self, Changes, Envelope, Presence};

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PeerAction {
    /// Apply these changes, of which the first so many were applied before.
    Apply {
        /// The peer.
        peer: PeerId,
        /// The message.
        changes: Changes,
        /// How many of its changes to leave out.
        skip: usize,
    },
    /// Fetch the peer's whole load.
    Fetch {
        /// The peer.
        peer: PeerId,
        /// Whether its load was applied before and differs: the first attempt of a repair.
        repairs: bool,
    },
    /// Remove everything that this peer contributed.
    Drop(PeerId),
    /// A peer appeared, returned, was refused or was lost.
    Changed(PeerId),
}

/// Reasons for which a message is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum IgnoredMessage {
    /// It cannot be decoded.
    Malformed,
    /// Its sender has another version of the messages.
    Version,
    /// Its sender has other settings that replicas must share.
    Settings,
    /// Another process uses this replica's id.
    DuplicateId,
    /// It is of a kind that this version does not know.
    UnknownKind,
    /// There are too many peers.
    TooManyPeers,
}

impl IgnoredMessage {
    pub(crate) const ALL: [Self; 6] = [
        Self::Malformed,
        Self::Version,
        Self::Settings,
        Self::DuplicateId,
        Self::UnknownKind,
        Self::TooManyPeers,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Version => "version",
            Self::Settings => "settings",
            Self::DuplicateId => "duplicate_id",
            Self::UnknownKind => "unknown_kind",
            Self::TooManyPeers => "too_many_peers",
        }
    }
}

/// What a replica knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnIdentity {
    pub(crate) id: u64,
    /// Digest of the settings that replicas must share.
    pub(crate) settings: u64,
    /// Whether load is exchanged.
    pub(crate) shares_load: bool,
}

/// All peers.
#[derive(Debug)]
pub(crate) struct PeerTable {
    own: OwnIdentity,
    /// Time without a message after which a peer is lost.
    ttl: Duration,
    peers: BTreeMap<u64, Peer>,
    issued: u32,
}

impl PeerTable {
    /// Most peers.
    pub(crate) const MOST: usize = 128;
    /// Time for which a lost peer stays in reports.
    const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
    /// Time without a message after which a peer may have been restarted. Presences come every
    /// second by default.
    const SILENT: Duration = Duration::from_secs(3);
    /// Time without a message for which a peer's share of the limits of tenants stays its own.
    const KEPT_SHARE: Duration = Duration::from_secs(60);
    /// Pause before a failed fetch is tried again.
    pub(crate) const FETCH_PAUSE: Duration = Duration::from_millis(250);

    pub(crate) fn new(own: OwnIdentity, ttl: Duration) -> Self {
        Self {
            own,
            ttl,
            peers: BTreeMap::new(),
            issued: 0,
        }
    }

    /// Returns every peer, lost ones too.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values()
    }

    /// Returns the peer with this number.
    pub(crate) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.values().find(|known| known.number == peer)
    }

    /// Returns the peer with this number, to use its chains.
    pub(crate) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.peers.values_mut().find(|known| known.number == peer)
    }

    /// Takes a message. `believed` returns the digest of what was applied of a peer.
    ///
    /// # Errors
    ///
    /// The message is not used.
    pub(crate) fn on_message(
        &mut self,
        now: Moment,
        message: Envelope,
        believed: impl Fn(PeerId) -> LoadDigest,
    ) -> Result<Vec<PeerAction>, IgnoredMessage> {
        if message.sender == self.own.id {
            // The exchange has left out what it sent itself.
            return Err(IgnoredMessage::DuplicateId);
        }
        if message.version != wire::VERSION {
            return self.refuse(now, &message, IgnoredMessage::Version);
        }
        let mut actions = Vec::new();
        match (message.presence, message.changes) {
            (Some(presence), _) => {
                return self.on_presence(now, message.sender, presence, believed);
            }
            // A sender is unknown until its first presence, which has its settings.
            (None, Some(changes)) => {
                if let Some(peer) = self.peers.get_mut(&message.sender) {
                    peer.seen(now);
                    peer.on_changes(changes, &mut actions);
                }
            }
            (None, None) => return Err(IgnoredMessage::UnknownKind),
        }
        Ok(actions)
    }

    fn on_presence(
        &mut self,
        now: Moment,
        sender: u64,
        presence: Presence,
        believed: impl Fn(PeerId) -> LoadDigest,
    ) -> Result<Vec<PeerAction>, IgnoredMessage> {
        if presence.settings != self.own.settings {
            let message = Envelope {
                sender,
                presence: Some(presence),
                ..Envelope::default()
            };
            return self.refuse(now, &message, IgnoredMessage::Settings);
        }
        let shares = self.own.shares_load && presence.shares_load;
        let leaving = presence.leaving;
        let Some(peer) = self.enter(now, sender) else {
            return Err(IgnoredMessage::TooManyPeers);
        };
        let mut actions = Vec::new();
        if leaving {
            peer.leave(&mut actions);
            return Ok(actions);
        }
        let was = peer.state();
        peer.on_presence(now, presence, shares, &believed, &mut actions);
        if was != peer.state() {
            actions.push(PeerAction::Changed(peer.number));
        }
        Ok(actions)
    }

    /// Takes the whole load of a peer, complete up to change `as_of`, which the caller has applied.
    /// Returns the held changes behind it.
    pub(crate) fn on_state(&mut self, peer: PeerId, as_of: u64) -> Vec<PeerAction> {
        let mut actions = Vec::new();
        if let Some(peer) = self.get_mut(peer) {
            let was = peer.state();
            peer.on_state(as_of, &mut actions);
            if was != peer.state() {
                actions.push(PeerAction::Changed(peer.number));
            }
        }
        actions
    }

    /// Records that a fetch has failed; it is repeated after a pause.
    pub(crate) fn on_fetch_failed(&mut self, now: Moment, peer: PeerId) {
        if let Some(peer) = self.get_mut(peer) {
            peer.on_fetch_failed(now);
        }
    }

    /// Loses silent peers, repeats failed fetches. Call it a few times a second.
    pub(crate) fn tick(&mut self, now: Moment) -> Vec<PeerAction> {
        let mut actions = Vec::new();
        let replaced = self.replaced(now);
        for peer in self.peers.values_mut() {
            if replaced.contains(&peer.id) {
                peer.lose(&mut actions);
            } else if now.since(peer.last_seen) >= self.ttl {
                peer.lose_silent(&mut actions);
            }
            peer.tick(now, &mut actions);
        }
        self.peers
            .retain(|_, peer| !peer.is_lost() || now.since(peer.last_seen) < Self::FORGOTTEN_AFTER);
        actions
    }

    /// Returns the silent peers at whose address another one has appeared since: they were
    /// restarted. Silence is required because routers on several machines may all report the same
    /// loopback address.
    fn replaced(&self, now: Moment) -> Vec<u64> {
        let silent = self.peers.values().filter(|peer| {
            !peer.is_lost() && now.since(peer.last_seen) >= Self::SILENT.min(self.ttl)
        });
        let is_replaced = |old: &&Peer| {
            self.peers.values().any(|new| {
                new.since > old.last_seen
                    && !new.is_lost()
                    && new.presence.address == old.presence.address
            })
        };
        silent.filter(is_replaced).map(|peer| peer.id).collect()
    }

    /// Returns the number of peers that are there and not refused.
    pub(crate) fn live(&self) -> usize {
        let live = |peer: &&Peer| !peer.is_lost() && peer.refused.is_none();
        self.peers.values().filter(live).count()
    }

    /// Returns the number of routers that share the limits of tenants, this one included. One that
    /// hears nobody counts all that fell silent: they serve on.
    pub(crate) fn serving(&self, now: Moment, is_connected: bool) -> u32 {
        let kept = if is_connected {
            Self::KEPT_SHARE
        } else {
            Self::FORGOTTEN_AFTER
        };
        let serving = |peer: &&Peer| peer.may_serve(now, kept);
        let peers = self.peers.values().filter(serving).count();
        u32::try_from(peers + 1).unwrap_or(u32::MAX)
    }

    fn refuse(
        &mut self,
        now: Moment,
        message: &Envelope,
        reason: IgnoredMessage,
    ) -> Result<Vec<PeerAction>, IgnoredMessage> {
        let mut actions = Vec::new();
        if let Some(peer) = self.enter(now, message.sender)
            && peer.refused != Some(reason)
        {
            if let Some(presence) = &message.presence {
                peer.presence = presence.clone();
            }
            peer.refuse(reason, &mut actions);
            return Ok(actions);
        }
        Err(reason)
    }

    /// Returns the peer with this id, which is entered if it is new and there is room.
    fn enter(&mut self, now: Moment, sender: u64) -> Option<&mut Peer> {
        if !self.peers.contains_key(&sender) {
            if self.peers.len() >= Self::MOST {
                let lost = self.peers.iter().find(|(_, peer)| peer.is_lost());
                let oldest = lost.map(|(id, _)| *id)?;
                self.peers.remove(&oldest);
            }
            self.issued += 1;
            let peer = Peer::new(sender, PeerId(self.issued), now);
            self.peers.insert(sender, peer);
        }
        let peer = self.peers.get_mut(&sender)?;
        peer.seen(now);
        Some(peer)
    }
}

#[cfg(test)]
mod tests;
