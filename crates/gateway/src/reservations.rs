//! Reservations of load for requests that other programs send.
//!
//! A reservation holds its load by a lease, like a request in flight, and ends by exactly one of:
//! its holder, its TTL, or the end of the worker's process. Its receipt then gets its outcome.
//!
//! **Invariant**: the lock is held for a few lines, never during a decision.

mod table;

use std::{sync::Arc, time::Duration};

use dialect::{ApiError, ErrorCode};
use fleet::{Snapshot, WorkerView};
use kv_blocks::{Moment, WorkerId};
use net::Clock;
use parking_lot::Mutex;
use routing::receipt::{DecisionId, OutcomeKind, ReceiptRing, RequestOutcome};
use tenants::TenantPlace;

pub(crate) use self::table::ReservationSize;
use self::table::ReservationTable;
use crate::lease::Lease;

/// All reservations, by their holders' ids.
#[derive(Debug)]
pub(crate) struct Reservations {
    ttl: Duration,
    table: Mutex<ReservationTable>,
    /// Has the receipts of the reservations.
    ring: Arc<ReceiptRing>,
}

/// The time of a call, on two clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTime {
    /// For receipts.
    pub(crate) now: Moment,
    /// A reservation's TTL counts run time ([`net::RunTime`]): while this process was suspended no
    /// holder could call.
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

/// The id of a reservation: unique among those of its tenant, which alone can name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReservationId {
    tenant: Arc<str>,
    id: Arc<str>,
}

impl ReservationId {
    /// Returns the id that a tenant chose.
    pub(crate) fn of(tenant: &Arc<str>, id: &str) -> Self {
        Self {
            tenant: Arc::clone(tenant),
            id: id.into(),
        }
    }
}

/// An open reservation.
#[derive(Debug)]
pub(crate) struct OpenReservation {
    lease: Lease,
    /// Its place among the concurrent requests of its tenant.
    _place: Option<TenantPlace>,
    process: ReservedProcess,
    receipt: DecisionId,
    received: Moment,
    first_token: Option<Moment>,
    /// In run time.
    last_call: Moment,
}

/// The worker process of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReservedProcess {
    worker: WorkerId,
    /// [`fleet::HealthView::ended`] at the decision.
    ended: u64,
}

impl ReservedProcess {
    /// Returns whether it runs, as far as known. A worker that fails its checks may still run: a
    /// probe may be wrong.
    fn is_running(self, workers: &Snapshot) -> bool {
        workers
            .worker(self.worker)
            .is_some_and(|worker| worker.health.ended == self.ended)
    }
}

impl OpenReservation {
    /// Creates a reservation of the load of `lease` on `worker`, with the receipt of that id.
    pub(crate) fn new(
        lease: Lease,
        worker: &WorkerView,
        receipt: DecisionId,
        at: CallTime,
    ) -> Self {
        let process = ReservedProcess {
            worker: worker.id,
            ended: worker.health.ended,
        };
        Self {
            lease,
            _place: None,
            process,
            receipt,
            received: at.now,
            first_token: None,
            last_call: at.run,
        }
    }

    /// Adds its place among the concurrent requests of its tenant.
    pub(crate) fn with_place(self, place: Option<TenantPlace>) -> Self {
        Self {
            _place: place,
            ..self
        }
    }

    /// Sets when its request was received; else that is the time of the call.
    pub(crate) fn received_at(self, received: Moment) -> Self {
        Self { received, ..self }
    }

    fn end(self, kind: OutcomeKind, now: Moment, ring: &ReceiptRing) {
        let Self {
            lease,
            receipt,
            received,
            first_token,
            ..
        } = self;
        // The engine does not report to this router, so it may have received the prompt: the cache
        // expectation stays.
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

/// Holds an id while its target is chosen. Dropping it releases the id, unless it was filled.
struct ReservationIdGuard<'a> {
    reservations: &'a Reservations,
    id: &'a ReservationId,
    filled: bool,
}

impl ReservationIdGuard<'_> {
    fn fill(mut self, reservation: OpenReservation) {
        self.filled = true;
        self.reservations.table.lock().insert(self.id, reservation);
    }
}

impl Drop for ReservationIdGuard<'_> {
    fn drop(&mut self) {
        // A filled id belongs to its holder: it may already be freed and taken again.
        if !self.filled {
            self.reservations.table.lock().remove(self.id);
        }
    }
}

impl Reservations {
    /// Creates an empty table; each reservation ends `ttl` after the last call about it.
    pub(crate) fn new(ttl: Duration, ring: Arc<ReceiptRing>) -> Self {
        Self {
            ttl,
            table: Mutex::default(),
            ring,
        }
    }

    /// Returns how long a reservation lives without a call.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the number of reservations.
    pub(crate) fn count(&self) -> usize {
        self.table.lock().count()
    }

    /// Adds the reservation that `open` makes under `id`. Of two callers with one id only one gets a
    /// reservation.
    pub(crate) fn reserve<T>(
        &self,
        id: &ReservationId,
        size: ReservationSize,
        at: CallTime,
        open: impl FnOnce() -> Result<(OpenReservation, T), ApiError>,
    ) -> Result<T, ApiError> {
        self.end_if_over(id, at);
        self.table.lock().take(id, size)?;
        let id_guard = ReservationIdGuard {
            reservations: self,
            id,
            filled: false,
        };
        let (reservation, result) = open()?;
        id_guard.fill(reservation);
        Ok(result)
    }

    /// Records that the prompt is computed; a repeated call only keeps the reservation alive.
    pub(crate) fn prefill_complete(
        &self,
        id: &ReservationId,
        at: CallTime,
    ) -> Result<(), ApiError> {
        self.end_if_over(id, at);
        let table = &mut *self.table.lock();
        let reservation = table.get_mut(id).ok_or_else(|| not_found(&id.id))?;
        reservation.last_call = at.run;
        reservation.first_token.get_or_insert(at.now);
        reservation.lease.first_token();
        Ok(())
    }

    /// Ends the reservation of a finished request.
    pub(crate) fn free(&self, id: &ReservationId, at: CallTime) -> Result<(), ApiError> {
        self.end_if_over(id, at);
        let freed = self.table.lock().remove_if(id, |_| true);
        freed
            .ok_or_else(|| not_found(&id.id))?
            .end(OutcomeKind::Ok, at.now, &self.ring);
        Ok(())
    }

    /// Ends the reservation of this decision, whose holder does not know of it. By now its id may
    /// be held by another one, which goes on.
    pub(crate) fn abandon(&self, id: &ReservationId, decision: DecisionId, at: CallTime) {
        let is_its_own = |reservation: &OpenReservation| reservation.receipt == decision;
        let abandoned = self.table.lock().remove_if(id, is_its_own);
        if let Some(reservation) = abandoned {
            reservation.end(OutcomeKind::ClientGone, at.now, &self.ring);
        }
    }

    /// Ends expired reservations, and those of ended worker processes, whose sequences ended too.
    /// Call about once a second.
    pub(crate) fn tick(&self, at: CallTime, workers: &Snapshot) {
        let over = |reservation: &OpenReservation| {
            self.is_over(reservation, at) || !reservation.process.is_running(workers)
        };
        let ended = self.table.lock().remove_all(over);
        for reservation in ended {
            let silent = self.is_over(&reservation, at);
            let kind = if silent {
                OutcomeKind::ClientGone
            } else {
                OutcomeKind::UpstreamError
            };
            reservation.end(kind, at.now, &self.ring);
        }
    }

    fn is_over(&self, reservation: &OpenReservation, at: CallTime) -> bool {
        at.run.since(reservation.last_call) >= self.ttl
    }

    /// Ends an expired reservation, whether or not a tick came since.
    fn end_if_over(&self, id: &ReservationId, at: CallTime) {
        let over = self
            .table
            .lock()
            .remove_if(id, |reservation| self.is_over(reservation, at));
        if let Some(reservation) = over {
            reservation.end(OutcomeKind::ClientGone, at.now, &self.ring);
        }
    }
}

/// Returns the error for an unknown id.
pub(crate) fn not_found(id: &str) -> ApiError {
    let id: String = id.chars().filter(|c| !c.is_control()).take(128).collect();
    let message = format!(
        "no reservation {id:?} is held: it was freed, its time ran out, or it was never made"
    );
    ApiError::new(ErrorCode::ReservationNotFound, message)
}

#[cfg(test)]
mod tests;
