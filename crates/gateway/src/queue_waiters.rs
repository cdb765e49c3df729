//! The router's queue, and the requests that wait in it.
//!
//! The router is pure: it hands out tickets, and whatever it is told next may release some of them. Here every release
//! finds the request that holds the ticket, in whichever order the two arrive. One loop releases what becomes due with time
//! and looks at the fleet for all waiting requests together.
//!
//! **Invariant**: a plan that is released is taken by its request or given back, also when the request is dropped at that
//! very moment.

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
    Dispatch, Job, Plan, Refusal, ReleasedRequest, ReservationId, Router, Ticket, WaitReason,
};
use tokio::sync::{Notify, oneshot};

use crate::model_watch::ModelWatch;

/// Releases that are due later than now are not looked for more often.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The router with the requests that wait in its queue.
#[derive(Debug)]
pub(crate) struct QueueWaiters {
    router: Arc<Router>,
    clock: Clock,
    /// At most one for each held request, which the queue bounds.
    slots: Mutex<HashMap<Ticket, TicketState>>,
    /// A request is held, or what requests wait for has changed.
    changed: Notify,
    /// Changes of the models that requests wait for.
    pub(crate) models: ModelWatch,
}

/// What is known of a ticket whose request and whose release have not met.
#[derive(Debug)]
enum TicketState {
    /// The request waits.
    Waits(oneshot::Sender<ReleasedRequest>),
    /// The release came first.
    Came(ReleasedRequest),
    /// The request is gone; the release is on its way.
    Gone,
}

/// The router's answer.
#[derive(Debug)]
pub(crate) enum QueueDecision {
    Now(Box<Plan>),
    Later(Waiter),
    Never(Refusal),
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

    pub(crate) fn decide(self: &Arc<Self>, now: Moment, job: &Job<'_>) -> QueueDecision {
        match self.router.decide(now, job) {
            Dispatch::Plan(plan) => QueueDecision::Now(plan),
            Dispatch::Refused(refusal) => QueueDecision::Never(refusal),
            Dispatch::Held(ticket) => QueueDecision::Later(self.entered(now, ticket)),
        }
    }

    /// Puts a request that nobody can take into the queue; `None`: the queue is full.
    pub(crate) fn enqueue(self: &Arc<Self>, now: Moment, job: &Job<'_>) -> Option<Waiter> {
        self.router
            .enqueue_unplaced(now, job)
            .map(|ticket| self.entered(now, ticket))
    }

    fn entered(self: &Arc<Self>, now: Moment, ticket: Ticket) -> Waiter {
        let waiter = self.waiter(ticket);
        self.deliver(self.router.take_released(now));
        waiter
    }

    pub(crate) fn first_token(&self, id: ReservationId) {
        self.deliver(self.router.first_token(self.clock.now(), id));
    }

    pub(crate) fn done(&self, id: ReservationId) {
        self.deliver(self.router.done(self.clock.now(), id));
    }

    pub(crate) fn failed(&self, id: ReservationId) {
        self.deliver(self.router.failed(self.clock.now(), id));
    }

    pub(crate) fn withdraw(&self, id: ReservationId) {
        self.deliver(self.router.withdraw(self.clock.now(), id));
    }

    pub(crate) fn tick(&self) {
        self.deliver(self.router.tick(self.clock.now()));
    }

    /// Releases requests that may go though nothing was heard, and tells them of changes of the fleet; never returns.
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
                    // One call releases a few; between two calls others have their turn.
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

    /// Gives each release to its request. A plan that nobody wants any more is given back, which may release others.
    fn deliver(&self, released: Vec<ReleasedRequest>) {
        let mut released = VecDeque::from(released);
        while let Some(next) = released.pop_front() {
            let mut slots = self.slots.lock();
            match slots.remove(&next.ticket) {
                // Sent under the lock: a request that finds its slot empty finds the plan in the channel.
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
        // What was heard may let those that still wait go sooner than was reckoned.
        if !self.slots.lock().is_empty() {
            self.changed.notify_one();
        }
    }
}

/// A held request. Dropping it takes it out of the queue, or gives its plan back.
#[derive(Debug)]
#[must_use = "dropping it gives the place in the queue away"]
pub(crate) struct Waiter {
    waiters: Arc<QueueWaiters>,
    ticket: Ticket,
    receiver: oneshot::Receiver<ReleasedRequest>,
    taken: bool,
}

impl Waiter {
    /// Waits for the plan. Returns once; may be dropped and called again before it does.
    pub(crate) async fn wait_for_release(&mut self) -> ReleasedRequest {
        let Ok(released) = (&mut self.receiver).await else {
            // The sender lives in its slot until it has sent.
            return std::future::pending().await;
        };
        self.taken = true;
        released
    }

    /// What it waits for; `None`: its plan is on its way.
    pub(crate) fn reason(&self) -> Option<WaitReason> {
        self.waiters.router.wait_reason(self.ticket)
    }

    /// It goes on waiting, in its place, for the candidates of `job`.
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
