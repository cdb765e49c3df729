//! The table of reservations by id, and its bounds.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use dialect::{ApiError, ErrorCode};

use super::OpenReservation;

/// Most reservations at once: as many as client connections with a request each.
pub(super) const MOST: usize = 10_000;
/// Most prompt blocks of all reservations together, each a few dozen bytes in ledger and index.
pub(super) const MOST_BLOCKS: u64 = 4_000_000;
/// `Retry-After` if the table is full, in seconds.
const FULL_RETRY_S: u32 = 5;

/// At most [`MOST`] entries with at most [`MOST_BLOCKS`] blocks.
#[derive(Debug, Default)]
pub(super) struct ReservationTable {
    by_id: HashMap<Arc<str>, ReservationEntry>,
    /// Sum over `by_id`.
    blocks: u64,
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
    /// Takes the id for a prompt of this many blocks.
    pub(super) fn take(&mut self, id: &Arc<str>, blocks: u64) -> Result<(), ApiError> {
        let many = self.by_id.len() >= MOST;
        let Entry::Vacant(free) = self.by_id.entry(Arc::clone(id)) else {
            let message = format!(
                "a reservation {id:?} is held already: free it first, or use another request_id"
            );
            return Err(ApiError::new(ErrorCode::ReservationExists, message).param("request_id"));
        };
        let full = |what: String| {
            let message =
                format!("{what} are held, and no more are kept: free some, then try again");
            Err(ApiError::new(ErrorCode::Overloaded, message).with_retry_after(FULL_RETRY_S))
        };
        if many {
            return full(format!("{MOST} reservations"));
        }
        if self.blocks.saturating_add(blocks) > MOST_BLOCKS {
            return full(format!(
                "reservations of {} of at most {MOST_BLOCKS} prompt blocks",
                self.blocks
            ));
        }
        free.insert(ReservationEntry {
            blocks,
            reservation: None,
        });
        self.blocks += blocks;
        Ok(())
    }

    /// Fills an id that was taken: no other call touches an entry without a reservation.
    pub(super) fn insert(&mut self, id: &str, reservation: OpenReservation) {
        if let Some(entry) = self.by_id.get_mut(id) {
            entry.reservation = Some(reservation);
        }
    }

    /// Returns the number of taken ids.
    pub(super) fn count(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the reservation of this id.
    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut OpenReservation> {
        self.by_id.get_mut(id)?.reservation.as_mut()
    }

    /// Releases an id.
    pub(super) fn remove(&mut self, id: &str) -> Option<OpenReservation> {
        let entry = self.by_id.remove(id)?;
        self.blocks -= entry.blocks;
        entry.reservation
    }

    /// Removes and returns all reservations that match.
    pub(super) fn remove_all(
        &mut self,
        matches: impl Fn(&OpenReservation) -> bool,
    ) -> Vec<OpenReservation> {
        let Self { by_id, blocks } = self;
        let removed = by_id.extract_if(|_, entry| entry.reservation.as_ref().is_some_and(&matches));
        removed
            .filter_map(|(_, entry)| {
                *blocks -= entry.blocks;
                entry.reservation
            })
            .collect()
    }

    /// Removes and returns one reservation if it matches.
    pub(super) fn remove_if(
        &mut self,
        id: &str,
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
