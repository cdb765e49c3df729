//! Places kept for requests that somebody else sends.
//!
//! A reservation holds its load by a lease, as a request in flight does, and is ended by exactly one of: its holder, the
//! time without a call, or the end of the worker's process. Its receipt then gets its outcome.
//!
//! **Invariant**: the lock is held for a few lines, never while a place is found.

mod table;

use std::{sync::Arc, time::Duration};

use dialect::{ApiError, ErrorCode};
use fleet::{Snapshot, WorkerView};
use kv_blocks::{Moment, WorkerId};
use net::Clock;
use parking_lot::Mutex;
use routing::receipt::{DecisionId, OutcomeKind, ReceiptRing, RequestOutcome};

use self::table::ReservationTable;
use crate::lease::Lease;

/// All reservations, by the id that their holders gave.
#[derive(Debug)]
pub(crate) struct Reservations {
    ttl: Duration,
    table: Mutex<ReservationTable>,
}

/// When somebody calls, on two time lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTime {
    /// For what a receipt tells.
    pub(crate) now: Moment,
    /// A reservation's life is counted in run time ([`net::RunTime`]): while this process stood still nobody could call.
    pub(crate) run: Moment,
}

impl CallTime {
    pub(crate) fn now(clock: Clock) -> Self {
        Self {
            now: clock.now(),
            run: clock.run_time(),
        }
    }
}

/// One reservation.
#[derive(Debug)]
pub(crate) struct OpenReservation {
    lease: Lease,
    process: ReservedProcess,
    receipt: DecisionId,
    received: Moment,
    first_token: Option<Moment>,
    /// In run time.
    last_call: Moment,
}

/// The process that a place was kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReservedProcess {
    worker: WorkerId,
    /// [`WorkerView::ended`] when the place was found.
    ended: u64,
}

impl ReservedProcess {
    /// Whether it runs, as far as anybody knows. One that fails its checks may: a probe may be wrong.
    fn lives(self, workers: &Snapshot) -> bool {
        workers
            .worker(self.worker)
            .is_some_and(|worker| worker.ended == self.ended)
    }
}

impl OpenReservation {
    /// The load of `lease` on `worker`, explained by the receipt of that id, for a request that came at `received`.
    pub(crate) fn new(
        lease: Lease,
        worker: &WorkerView,
        receipt: DecisionId,
        received: Moment,
        at: CallTime,
    ) -> Self {
        let process = ReservedProcess {
            worker: worker.id,
            ended: worker.ended,
        };
        Self {
            lease,
            process,
            receipt,
            received,
            first_token: None,
            last_call: at.run,
        }
    }

    fn end(self, kind: OutcomeKind, now: Moment, ring: &ReceiptRing) {
        let Self {
            lease,
            receipt,
            received,
            first_token,
            ..
        } = self;
        // Without a word from the engine nobody knows that it did not get the prompt: what is expected of its cache stays.
        drop(lease);
        ring.update(receipt, |receipt| {
            receipt.outcome = Some(RequestOutcome {
                kind,
                status: None,
                ttft_ms: first_token.map(|at| at.ms_since(received)),
                duration_ms: now.ms_since(received),
                prompt_tokens: None,
                completion_tokens: None,
                cached_tokens: None,
                finish_reason: None,
            });
        });
    }
}

/// An id that is taken while its target is being chosen. Dropping it gives the id back, unless it was filled.
struct ReservationIdGuard<'a> {
    reservations: &'a Reservations,
    id: &'a str,
    filled: bool,
}

impl ReservationIdGuard<'_> {
    fn fill(mut self, held: OpenReservation) {
        self.filled = true;
        self.reservations.table.lock().insert(self.id, held);
    }
}

impl Drop for ReservationIdGuard<'_> {
    fn drop(&mut self) {
        // Once filled it is its holder's: it may have been freed already, and the id be somebody else's.
        if !self.filled {
            self.reservations.table.lock().remove(self.id);
        }
    }
}

impl Reservations {
    /// None yet; each will end `ttl` after the last call about it.
    pub(crate) fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            table: Mutex::default(),
        }
    }

    /// How long a reservation lives without a call.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Number of reservations.
    pub(crate) fn count(&self) -> usize {
        self.table.lock().count()
    }

    /// Keeps under `id` what `place` decides for a prompt of so many blocks. Of two holders with one id only one is
    /// placed.
    pub(crate) fn reserve<T>(
        &self,
        id: &Arc<str>,
        blocks: u64,
        at: CallTime,
        ring: &ReceiptRing,
        place: impl FnOnce() -> Result<(OpenReservation, T), ApiError>,
    ) -> Result<T, ApiError> {
        self.end_if_over(id, at, ring);
        self.table.lock().take(id, blocks)?;
        let taken = ReservationIdGuard {
            reservations: self,
            id,
            filled: false,
        };
        let (held, told) = place()?;
        taken.fill(held);
        Ok(told)
    }

    /// The prompt is computed; a repeated call only keeps the reservation alive.
    pub(crate) fn prefill_complete(
        &self,
        id: &str,
        at: CallTime,
        ring: &ReceiptRing,
    ) -> Result<(), ApiError> {
        self.end_if_over(id, at, ring);
        let places = &mut *self.table.lock();
        let held = places.get_mut(id).ok_or_else(|| not_found(id))?;
        held.last_call = at.run;
        held.first_token.get_or_insert(at.now);
        held.lease.first_token();
        Ok(())
    }

    /// The request is over.
    pub(crate) fn free(&self, id: &str, at: CallTime, ring: &ReceiptRing) -> Result<(), ApiError> {
        self.end_if_over(id, at, ring);
        let freed = self.table.lock().remove_if(id, |_| true);
        freed
            .ok_or_else(|| not_found(id))?
            .end(OutcomeKind::Ok, at.now, ring);
        Ok(())
    }

    /// Ends what is over: without a call for too long, or in a process that has ended and with it every sequence it had.
    /// Call about once a second.
    pub(crate) fn tick(&self, at: CallTime, workers: &Snapshot, ring: &ReceiptRing) {
        let over = |held: &OpenReservation| self.is_over(held, at) || !held.process.lives(workers);
        let ended = self.table.lock().remove_all(over);
        for held in ended {
            let silent = self.is_over(&held, at);
            held.end(
                if silent {
                    OutcomeKind::ClientGone
                } else {
                    OutcomeKind::UpstreamError
                },
                at.now,
                ring,
            );
        }
    }

    fn is_over(&self, held: &OpenReservation, at: CallTime) -> bool {
        at.run.since(held.last_call) >= self.ttl
    }

    /// A reservation whose time is up is over, whether or not a tick has come by.
    fn end_if_over(&self, id: &str, at: CallTime, ring: &ReceiptRing) {
        let over = self
            .table
            .lock()
            .remove_if(id, |held| self.is_over(held, at));
        if let Some(held) = over {
            held.end(OutcomeKind::ClientGone, at.now, ring);
        }
    }
}

/// No reservation has this id.
pub(crate) fn not_found(id: &str) -> ApiError {
    let id: String = id.chars().filter(|c| !c.is_control()).take(128).collect();
    let message = format!(
        "no reservation {id:?} is held: it was freed, its time ran out, or it was never made"
    );
    ApiError::new(ErrorCode::ReservationNotFound, message)
}

#[cfg(test)]
mod tests;
