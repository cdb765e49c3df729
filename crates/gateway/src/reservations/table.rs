//! The table of reservations by id, and its bounds.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use dialect::{ApiError, ErrorCode};

use super::{OpenReservation, ReservationId};

/// Most reservations at once: as many as client connections with a request each.
pub(super) const MOST: usize = 10_000;
/// Most prompt blocks of all reservations together, each a few dozen bytes in ledger and index.
pub(super) const MOST_BLOCKS: u64 = 4_000_000;
/// `Retry-After` if the table is full, in seconds.
const FULL_RETRY_S: u32 = 5;

/// At most [`MOST`] entries with at most [`MOST_BLOCKS`] blocks; half of both for one tenant among
/// several.
#[derive(Debug, Default)]
pub(super) struct ReservationTable {
    by_id: HashMap<ReservationId, ReservationEntry>,
    /// Sum over `by_id`.
    held: HeldShare,
    /// Sums of tenants with reservations.
    by_tenant: HashMap<Arc<str>, HeldShare>,
}

/// Reservations, and the blocks of their prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeldShare {
    count: usize,
    blocks: u64,
}

impl HeldShare {
    fn add(&mut self, blocks: u64) {
        self.count += 1;
        self.blocks += blocks;
    }

    fn remove(&mut self, blocks: u64) {
        self.count = self.count.saturating_sub(1);
        self.blocks = self.blocks.saturating_sub(blocks);
    }

    /// Returns what has no room for another reservation, if one of this many blocks does not fit
    /// into `1/parts` of the table.
    fn full(self, blocks: u64, parts: u32) -> Option<String> {
        let (most, most_blocks) = (MOST / parts as usize, MOST_BLOCKS / u64::from(parts));
        if self.count >= most {
            Some(format!("{most} reservations"))
        } else if self.blocks.saturating_add(blocks) > most_blocks {
            let blocks = self.blocks;
            Some(format!(
                "reservations of {blocks} of at most {most_blocks} prompt blocks"
            ))
        } else {
            None
        }
    }
}

/// What a new reservation takes of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservationSize {
    /// Blocks of the prompt.
    pub(crate) blocks: u64,
    /// Whether its tenant may have the whole table.
    pub(crate) is_alone: bool,
}

/// The entry of one id.
#[derive(Debug)]
pub(super) struct ReservationEntry {
    /// Blocks of the prompt.
    blocks: u64,
    /// `None` while the target is being chosen: the id is taken, and no call about it succeeds yet.
    reservation: Option<OpenReservation>,
}

impl ReservationTable {
    /// Takes the id for a reservation of this size.
    pub(super) fn take(
        &mut self,
        id: &ReservationId,
        size: ReservationSize,
    ) -> Result<(), ApiError> {
        let blocks = size.blocks;
        let Entry::Vacant(free) = self.by_id.entry(id.clone()) else {
            let id = &id.id;
            let message = format!(
                "a reservation {id:?} is held already: free it first, or use another request_id"
            );
            return Err(ApiError::new(ErrorCode::ReservationExists, message).param("request_id"));
        };
        let own = self.by_tenant.get(&id.tenant).copied().unwrap_or_default();
        let own_full = (!size.is_alone).then(|| own.full(blocks, 2)).flatten();
        if let Some(what) = self.held.full(blocks, 1).or(own_full) {
            let message =
                format!("{what} are held, and no more are kept: free some, then try again");
            return Err(
                ApiError::new(ErrorCode::Overloaded, message).with_retry_after(FULL_RETRY_S)
            );
        }
        free.insert(ReservationEntry {
            blocks,
            reservation: None,
        });
        self.held.add(blocks);
        self.by_tenant
            .entry(Arc::clone(&id.tenant))
            .or_default()
            .add(blocks);
        Ok(())
    }

    /// Takes a removed entry off the sums.
    fn subtract(&mut self, tenant: &Arc<str>, blocks: u64) {
        self.held.remove(blocks);
        if let Entry::Occupied(mut own) = self.by_tenant.entry(Arc::clone(tenant)) {
            own.get_mut().remove(blocks);
            if own.get().count == 0 {
                own.remove();
            }
        }
    }

    /// Fills an id that was taken: no other call touches an entry without a reservation.
    pub(super) fn insert(&mut self, id: &ReservationId, reservation: OpenReservation) {
        if let Some(entry) = self.by_id.get_mut(id) {
            entry.reservation = Some(reservation);
        }
    }

    /// Returns the number of taken ids.
    pub(super) fn count(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the reservation of this id.
    pub(super) fn get_mut(&mut self, id: &ReservationId) -> Option<&mut OpenReservation> {
        self.by_id.get_mut(id)?.reservation.as_mut()
    }

    /// Releases an id.
    pub(super) fn remove(&mut self, id: &ReservationId) -> Option<OpenReservation> {
        let entry = self.by_id.remove(id)?;
        self.subtract(&id.tenant, entry.blocks);
        entry.reservation
    }

    /// Removes and returns all reservations that match.
    pub(super) fn remove_all(
        &mut self,
        matches: impl Fn(&OpenReservation) -> bool,
    ) -> Vec<OpenReservation> {
        let matches = |entry: &ReservationEntry| entry.reservation.as_ref().is_some_and(&matches);
        let removed = self.by_id.extract_if(|_, entry| matches(entry));
        let removed: Vec<_> = removed.collect();
        let end = |(id, entry): (ReservationId, ReservationEntry)| {
            self.subtract(&id.tenant, entry.blocks);
            entry.reservation
        };
        removed.into_iter().filter_map(end).collect()
    }

    /// Removes and returns one reservation if it matches.
    pub(super) fn remove_if(
        &mut self,
        id: &ReservationId,
        matches: impl FnOnce(&OpenReservation) -> bool,
    ) -> Option<OpenReservation> {
        if self
            .get_mut(id)
            .is_some_and(|reservation| matches(reservation))
        {
            self.remove(id)
        } else {
            None
        }
    }
}
