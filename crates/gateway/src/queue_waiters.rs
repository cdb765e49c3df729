//! The router's queue, and the requests that wait in it.
//!
//! The router is pure: it hands out tickets, and any later call may release some of them. This
//! module brings every release to the request that holds the ticket, in whichever order the two
//! arrive. One loop releases what becomes due with time and checks the fleet for all waiting
//! requests together.
//!
//! **Invariant**: a released plan is taken by its request or withdrawn, also when the request is
//! dropped at that very moment.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use fleet::Fleet;
use kv_blocks::Moment;
use net::Clock;
use parking_lot::Mutex;
use routing::{
    AttemptEnd, Job, QueueLimit, ReleasedRequest, ReportedWork, ReservationId, Router, Ticket,
    WaitReason,
};
use tokio::sync::{Notify, oneshot};

use crate::model_watch::ModelWatch;

/// Shortest sleep before a due release.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The router with the requests that wait in its queue.
#[derive(Debug)]
pub(crate) struct QueueWaiters {
    router: Arc<Router>,
    clock: Clock,
    /// At most one entry for each queued request; the queue bounds them.
    slots: Mutex<HashMap<Ticket, TicketState>>,
    /// Signals a new queued request, or an event that may change its due time.
    changed: Notify,
    /// Watches the models that requests wait for.
    pub(crate) models: ModelWatch,
}

/// The state of a ticket whose request and release have not met.
#[derive(Debug)]
enum TicketState {
    /// The request waits.
    Waits(oneshot::Sender<ReleasedRequest>),
    /// The release came first.
    Came(ReleasedRequest),
    /// The request was dropped; the release is on its way.
    Gone,
}

impl QueueWaiters {
    pub(crate) fn new(router: Arc<Router>, clock: Clock) -> Self {
        let (slots, changed, models) = (Mutex::default(), Notify::new(), ModelWatch::default());
        Self {
            router,
            clock,
            slots,
            changed,
            models,
        }
    }

    /// Queues a request that no target can take, if a limit does not keep it out.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        now: Moment,
        job: &Job<'_>,
    ) -> Result<Waiter, QueueLimit> {
        self.router
            .enqueue_without_target(now, job)
            .map(|ticket| self.entered(now, ticket))
    }

    /// Waits for the release of a queued request.
    pub(crate) fn entered(self: &Arc<Self>, now: Moment, ticket: Ticket) -> Waiter {
        let waiter = self.waiter(ticket);
        self.deliver(self.router.take_released(now));
        waiter
    }

    pub(crate) fn first_token(&self, id: ReservationId) {
        self.deliver(self.router.first_token(self.clock.now(), id));
    }

    pub(crate) fn record_work(&self, id: ReservationId, reported: ReportedWork) {
        self.router.record_work(self.clock.now(), id, reported);
    }

    pub(crate) fn end_attempt(&self, id: ReservationId, end: AttemptEnd) {
        self.deliver(self.router.end_attempt(self.clock.now(), id, end));
    }

    pub(crate) fn withdraw(&self, id: ReservationId) {
        self.deliver(self.router.withdraw(self.clock.now(), id));
    }

    pub(crate) fn tick(&self) {
        self.deliver(self.router.tick(self.clock.now()));
    }

    /// Releases requests that become due with time, and wakes them on changes of the fleet; never
    /// returns.
    pub(crate) async fn run(&self, fleet: &Fleet) {
        loop {
            let now = self.clock.now();
            let due = [self.router.next_release(now), self.models.next_check()]
                .into_iter()
                .flatten()
                .min();
            match due {
                None => self.changed.notified().await,
                Some(then) if then <= now => {
                    self.models.check_fleet(now, fleet, &self.router);
                    self.deliver(self.router.take_released(now));
                    // One call releases a few; other tasks run between two calls.
                    tokio::task::yield_now().await;
                }
                Some(then) => tokio::select! {
                    () = tokio::time::sleep(then.since(now).max(SHORTEST_PAUSE)) => {}
                    () = self.changed.notified() => {}
                },
            }
        }
    }

    fn waiter(self: &Arc<Self>, ticket: Ticket) -> Waiter {
        let (sender, receiver) = oneshot::channel();
        let mut slots = self.slots.lock();
        match slots.remove(&ticket) {
            Some(TicketState::Came(released)) => drop(sender.send(released)),
            _ => drop(slots.insert(ticket, TicketState::Waits(sender))),
        }
        drop(slots);
        Waiter {
            waiters: Arc::clone(self),
            ticket,
            receiver,
            taken: false,
        }
    }

    /// Delivers each release to its request. A plan without a request is withdrawn, which may
    /// release others.
    pub(crate) fn deliver(&self, released: Vec<ReleasedRequest>) {
        let mut released = VecDeque::from(released);
        while let Some(next) = released.pop_front() {
            let mut slots = self.slots.lock();
            match slots.remove(&next.ticket) {
                // Sent under the lock: a request that finds its slot empty finds the plan in the
                // channel.
                Some(TicketState::Waits(sender)) => drop(sender.send(next)),
                Some(TicketState::Gone) => {
                    drop(slots);
                    released.extend(
                        self.router
                            .withdraw(self.clock.now(), next.plan.reservation),
                    );
                }
                _ => drop(slots.insert(next.ticket, TicketState::Came(next))),
            }
        }
        // The releases may bring forward the due time of requests that still wait.
        if !self.slots.lock().is_empty() {
            self.changed.notify_one();
        }
    }
}

/// A queued request. Dropping it removes it from the queue, or withdraws its plan.
#[derive(Debug)]
#[must_use = "dropping it gives up the position in the queue"]
pub(crate) struct Waiter {
    waiters: Arc<QueueWaiters>,
    ticket: Ticket,
    receiver: oneshot::Receiver<ReleasedRequest>,
    taken: bool,
}

impl Waiter {
    /// Waits for the plan. Returns once; cancel-safe until then.
    pub(crate) async fn wait_for_release(&mut self) -> ReleasedRequest {
        let Ok(released) = (&mut self.receiver).await else {
            // The sender lives in its slot until it has sent.
            return std::future::pending().await;
        };
        self.taken = true;
        released
    }

    /// Returns the reason of the wait; `None`: the plan is on its way.
    pub(crate) fn reason(&self) -> Option<WaitReason> {
        self.waiters.router.wait_reason(self.ticket)
    }

    /// Keeps waiting, in its position, for the candidates of `job`.
    pub(crate) fn replace_candidates(&self, now: Moment, job: &Job<'_>) {
        if self
            .waiters
            .router
            .replace_candidates(now, self.ticket, job)
        {
            self.waiters.deliver(self.waiters.router.take_released(now));
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut slots = self.waiters.slots.lock();
        if self.waiters.router.cancel(self.ticket) {
            slots.remove(&self.ticket);
            return;
        }
        let slot = slots
            .get_mut(&self.ticket)
            .map(|slot| mem::replace(slot, TicketState::Gone));
        drop(slots);
        if slot.is_none()
            && let Ok(released) = self.receiver.try_recv()
        {
            self.waiters.withdraw(released.plan.reservation);
        }
    }
}
