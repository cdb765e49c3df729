//! What is kept under which id, and how much of it may be kept.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use dialect::{ApiError, ErrorCode};

use super::OpenReservation;

/// Reservations at once, as many as there may be client connections with a request each: beyond it one must end first.
pub(super) const MOST: usize = 10_000;
/// Prompt blocks of all reservations together, each a few dozen bytes in the books of load and index.
pub(super) const MOST_BLOCKS: u64 = 4_000_000;
/// When to ask again for a place if there are too many.
const FULL_RETRY_S: u32 = 5;

/// At most [`MOST`] with at most [`MOST_BLOCKS`].
#[derive(Debug, Default)]
pub(super) struct ReservationTable {
    by_id: HashMap<Arc<str>, ReservationEntry>,
    /// Sum over `by_id`.
    blocks: u64,
}

/// What is kept under one id.
#[derive(Debug)]
pub(super) struct ReservationEntry {
    /// Blocks of the prompt.
    blocks: u64,
    /// `None` while its target is being chosen: the id is taken, and nobody knows of it yet.
    reservation: Option<OpenReservation>,
}

impl ReservationTable {
    /// Takes the id for a prompt of so many blocks.
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

    /// Keeps `held` in a place that was taken for it: nobody else touches one without a reservation in it.
    pub(super) fn insert(&mut self, id: &str, held: OpenReservation) {
        if let Some(place) = self.by_id.get_mut(id) {
            place.reservation = Some(held);
        }
    }

    /// How many ids are taken.
    pub(super) fn count(&self) -> usize {
        self.by_id.len()
    }

    /// The reservation under this id.
    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut OpenReservation> {
        self.by_id.get_mut(id)?.reservation.as_mut()
    }

    /// Gives an id back.
    pub(super) fn remove(&mut self, id: &str) -> Option<OpenReservation> {
        let place = self.by_id.remove(id)?;
        self.blocks -= place.blocks;
        place.reservation
    }

    /// Takes out all that are held and of which this is so.
    pub(super) fn remove_all(
        &mut self,
        is_so: impl Fn(&OpenReservation) -> bool,
    ) -> Vec<OpenReservation> {
        let Self { by_id, blocks } = self;
        let gone = by_id.extract_if(|_, place| place.reservation.as_ref().is_some_and(&is_so));
        gone.filter_map(|(_, place)| {
            *blocks -= place.blocks;
            place.reservation
        })
        .collect()
    }

    /// The same of one.
    pub(super) fn remove_if(
        &mut self,
        id: &str,
        is_so: impl FnOnce(&OpenReservation) -> bool,
    ) -> Option<OpenReservation> {
        if self.get_mut(id).is_some_and(|held| is_so(held)) {
            self.remove(id)
        } else {
            None
        }
    }
}
