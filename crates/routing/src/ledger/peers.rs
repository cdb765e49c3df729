//! The open reservations of other replicas.
//!
//! A peer's reservation counts on its target as one of this router's own, under a number that this
//! router gives it: the accounts and the order of prefills do not tell them apart. It gives no
//! sample of a worker's speed, and no call of this router's own requests finds it.
//!
//! A peer's ids ascend, and an announced one that is not above all earlier ones has been closed
//! since, or was lost: it is not opened again. So a repeated message leaves no load behind, and no
//! list of closed ids is kept. A [`LoadPage`] states what is open, whatever the ids are.
//!
//! [`LoadPage`]: crate::LoadPage

use std::{
    collections::{BTreeMap, HashMap},
    iter,
    ops::Bound,
    time::Duration,
};

use foldhash::fast::FixedState;
use kv_blocks::{Moment, Target};
use kv_index::SpeculationId;

use super::{Ledger, start_decoding};
use crate::{
    ReservationId,
    replication::change::{LoadDigest, OpenLoad, PeerId},
};

/// Longest time that is assumed from a peer's decision to its arrival here. Without this time, the
/// samples of prompts that two routers sent to one engine at once made engines look slow: with 8
/// routers the simulator had up to 7 times the mean TTFT.
const EXCHANGE_MOST: Duration = Duration::from_millis(20);

/// The peers. Bounded: one entry per peer that was not dropped, with its open reservations.
#[derive(Debug, Default)]
pub(super) struct PeerTable(HashMap<PeerId, PeerLoads, FixedState>);

/// One peer's open reservations, by its own numbers for them.
#[derive(Debug, Default)]
struct PeerLoads {
    open: BTreeMap<ReservationId, PeerReservation>,
    digest: LoadDigest,
    /// The highest id that was announced.
    newest: ReservationId,
}

#[derive(Clone, Copy, Debug)]
struct PeerReservation {
    /// This router's number for it; `None`: its worker is not known here, and it counts nowhere.
    local: Option<ReservationId>,
    first_token: bool,
}

/// How an open reservation of a peer became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadSource {
    /// The peer announced that it was opened.
    Announcement,
    /// The peer listed it among those that are open.
    Listing,
}

impl Ledger {
    /// Counts an open reservation of a peer, unless it is counted already; `speculation` is what
    /// the index expects because of it. Returns the target whose load changed.
    pub(crate) fn open_of_peer(
        &mut self,
        now: Moment,
        peer: PeerId,
        load: OpenLoad,
        (source, speculation): (LoadSource, SpeculationId),
    ) -> Option<Target> {
        let id = load.id;
        let loads = self.peers.0.entry(peer).or_default();
        let is_new = id > loads.newest;
        loads.newest = loads.newest.max(id);
        match loads.open.get(&id) {
            Some(known) if source == LoadSource::Listing && known.is_outdated(&load) => {
                self.close_of_peer(now, peer, id);
            }
            Some(known) if load.first_token && !known.first_token => {
                return self.first_token_of_peer(now, peer, id);
            }
            Some(_) => return None,
            None if source == LoadSource::Announcement && !is_new => return None,
            None => {}
        }
        let target = load.target;
        let local = target.map(|target| self.count_for_peer(now, target, &load, speculation));
        let loads = self.peers.0.entry(peer).or_default();
        loads.digest.add(id, false);
        loads.open.insert(
            id,
            PeerReservation {
                local,
                first_token: false,
            },
        );
        if load.first_token {
            self.first_token_of_peer(now, peer, id);
        }
        target
    }

    fn count_for_peer(
        &mut self,
        now: Moment,
        target: Target,
        load: &OpenLoad,
        speculation: SpeculationId,
    ) -> ReservationId {
        if self.has_decided && !self.accounts.contains_key(&target) {
            let cold_tokens = self.newcomer_cold_tokens(now, iter::once(target));
            self.record_backlogs(now, iter::once(target), cold_tokens);
        }
        self.doubt_last_alone(now, target);
        let age = Duration::try_from_secs_f64(load.age_ms / 1e3).unwrap_or_default();
        let local = self.next_id();
        let mut reservation = self.count(now - age, local, target, load.load.clone());
        reservation.speculation = speculation;
        self.open.of_peers.insert(local, reservation);
        if let Some(account) = self.accounts.get_mut(&target) {
            *account.peer_in_flight_mut() += 1;
        }
        local
    }

    /// Withdraws that an own prefill is alone on `target` if a peer's may have come at the same
    /// time: its first token is no sample of the worker's speed.
    fn doubt_last_alone(&mut self, now: Moment, target: Target) {
        let account = self.accounts.get(&target);
        let last = account.and_then(|account| self.open.own.get_mut(&account.last_alone()));
        if let Some(own) = last.filter(|own| now.since(own.opened) < EXCHANGE_MOST) {
            own.alone = false;
        }
    }

    /// Returns the number of routers that share their load, this one included.
    pub(crate) fn replicas(&self) -> u32 {
        u32::try_from(self.peers.0.len()).map_or(u32::MAX, |peers| peers.saturating_add(1))
    }

    /// Moves a peer's reservation from prefill to decode; returns its target. Unknown and repeated
    /// ids are ignored.
    pub(crate) fn first_token_of_peer(
        &mut self,
        now: Moment,
        peer: PeerId,
        id: ReservationId,
    ) -> Option<Target> {
        let loads = self.peers.0.get_mut(&peer)?;
        let known = loads.open.get_mut(&id).filter(|known| !known.first_token)?;
        known.first_token = true;
        loads.digest.advance(id);
        let local = known.local?;
        let reservation = self.open.of_peers.get_mut(&local)?;
        start_decoding(&mut self.accounts, now, local, reservation);
        Some(reservation.target)
    }

    /// Records that the engine did not receive the prompt of a peer's reservation.
    pub(crate) fn discard_of_peer(&mut self, peer: PeerId, id: ReservationId) {
        let known = self
            .peers
            .0
            .get(&peer)
            .and_then(|loads| loads.open.get(&id));
        if let Some(local) = known.and_then(|known| known.local) {
            self.live.discard(local);
        }
    }

    /// Frees a peer's reservation; returns its target and its speculation in the index. Unknown and
    /// repeated ids are ignored.
    pub(crate) fn close_of_peer(
        &mut self,
        now: Moment,
        peer: PeerId,
        id: ReservationId,
    ) -> Option<(Target, SpeculationId)> {
        let loads = self.peers.0.get_mut(&peer)?;
        let known = loads.open.remove(&id)?;
        loads.digest.remove(id, known.first_token);
        let local = known.local?;
        let reservation = self.open.of_peers.remove(&local)?;
        let target = reservation.target;
        if let Some(account) = self.accounts.get_mut(&target) {
            *account.peer_in_flight_mut() -= 1;
        }
        Some((target, self.free(now, local, reservation)))
    }

    /// Returns open reservations of a peer after `after`, up to and with `through` if that is set,
    /// in the order of their ids, at most `most`.
    pub(crate) fn ids_of_peer(
        &self,
        peer: PeerId,
        (after, through): (ReservationId, Option<ReservationId>),
        most: usize,
    ) -> Vec<ReservationId> {
        // A range that ends before it begins would panic.
        let through = through.map(|through| through.max(after));
        let end = through.map_or(Bound::Unbounded, Bound::Included);
        if through == Some(after) {
            return Vec::new();
        }
        self.peers.0.get(&peer).map_or_else(Vec::new, |loads| {
            let ids = loads.open.range((Bound::Excluded(after), end));
            ids.map(|(id, _)| *id).take(most).collect()
        })
    }

    /// Returns the digest of a peer's open reservations.
    pub(crate) fn peer_digest(&self, peer: PeerId) -> LoadDigest {
        self.peers
            .0
            .get(&peer)
            .map_or_else(LoadDigest::default, |loads| loads.digest)
    }

    /// Drops a peer without open reservations.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        if self
            .peers
            .0
            .get(&peer)
            .is_some_and(|loads| loads.open.is_empty())
        {
            self.peers.0.remove(&peer);
        }
    }
}

impl PeerReservation {
    /// Returns whether the peer's statement contradicts this entry in a way that only a new one
    /// settles.
    fn is_outdated(self, load: &OpenLoad) -> bool {
        let has_become_known = self.local.is_none() && load.target.is_some();
        has_become_known || (self.first_token && !load.first_token)
    }
}
