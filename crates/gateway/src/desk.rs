//! The router, and the requests that wait for its word.
//!
//! The router is pure: it hands out tickets, and whatever it is told next may release some of them. Here every release
//! finds the request that holds the ticket, in whichever order the two arrive.
//!
//! **Invariant**: a plan that is released is taken by its request or given back, also when the request is dropped at that
//! very moment.

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use kv_blocks::Moment;
use net::Clock;
use parking_lot::Mutex;
use routing::{Dispatch, Job, Plan, Refusal, Released, ReservationId, Router, Ticket};
use tokio::sync::{Notify, oneshot};

/// Releases by time are not looked for more often.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The router with those who wait.
#[derive(Debug)]
pub(crate) struct Desk {
    router: Arc<Router>,
    clock: Clock,
    waiting: Mutex<HashMap<Ticket, Slot>>,
    /// Somebody is held, or what they wait for has changed.
    changed: Notify,
}

/// What is known of a ticket whose request and whose release have not met.
#[derive(Debug)]
enum Slot {
    /// The request waits.
    Waits(oneshot::Sender<Released>),
    /// The release came first.
    Came(Released),
    /// The request is gone; the release is on its way.
    Gone,
}

/// What the router said.
#[derive(Debug)]
pub(crate) enum Decided {
    Now(Box<Plan>),
    Later(Waiter),
    Never(Refusal),
}

impl Desk {
    pub(crate) fn new(router: Arc<Router>, clock: Clock) -> Self {
        Self { router, clock, waiting: Mutex::default(), changed: Notify::new() }
    }

    pub(crate) fn decide(self: &Arc<Self>, now: Moment, job: &Job<'_>) -> Decided {
        match self.router.decide(now, job) {
            Dispatch::Plan(plan) => Decided::Now(plan),
            Dispatch::Refused(refusal) => Decided::Never(refusal),
            Dispatch::Held(ticket) => {
                let waiter = self.waiter(ticket);
                self.deliver(self.router.released(now));
                Decided::Later(waiter)
            }
        }
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

    pub(crate) fn withdrawn(&self, id: ReservationId) {
        self.deliver(self.router.withdrawn(self.clock.now(), id));
    }

    pub(crate) fn tick(&self) {
        self.deliver(self.router.tick(self.clock.now()));
    }

    /// Lets go, again and again, those who may go though nothing was heard; never returns.
    pub(crate) async fn pace(&self) {
        loop {
            let now = self.clock.now();
            let Some(then) = self.router.next_release(now) else {
                self.changed.notified().await;
                continue;
            };
            tokio::select! {
                () = tokio::time::sleep(then.since(now).max(SHORTEST_PAUSE)) => {
                    self.deliver(self.router.released(self.clock.now()));
                }
                () = self.changed.notified() => {}
            }
        }
    }

    fn waiter(self: &Arc<Self>, ticket: Ticket) -> Waiter {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        match waiting.remove(&ticket) {
            Some(Slot::Came(released)) => drop(sender.send(released)),
            _ => drop(waiting.insert(ticket, Slot::Waits(sender))),
        }
        drop(waiting);
        Waiter { desk: Arc::clone(self), ticket, receiver, taken: false }
    }

    /// Gives each release to its request. A plan that nobody wants any more is given back, which may release others.
    fn deliver(&self, mut released: Vec<Released>) {
        while let Some(next) = released.pop() {
            let mut waiting = self.waiting.lock();
            match waiting.remove(&next.ticket) {
                // Sent under the lock: whoever finds its slot empty finds the plan in the channel.
                Some(Slot::Waits(sender)) => drop(sender.send(next)),
                Some(Slot::Gone) => {
                    drop(waiting);
                    released.extend(self.router.withdrawn(self.clock.now(), next.plan.reservation));
                }
                _ => drop(waiting.insert(next.ticket, Slot::Came(next))),
            }
        }
        // What was heard may let those who still wait go sooner than was reckoned.
        if !self.waiting.lock().is_empty() {
            self.changed.notify_one();
        }
    }
}

/// A held request. Dropping it takes it out of the queue, or gives its plan back.
#[derive(Debug)]
#[must_use = "dropping it gives the place in the queue away"]
pub(crate) struct Waiter {
    desk: Arc<Desk>,
    ticket: Ticket,
    receiver: oneshot::Receiver<Released>,
    taken: bool,
}

impl Waiter {
    /// Waits for the plan. Returns once; may be dropped and called again before it does.
    pub(crate) async fn released(&mut self) -> Released {
        let Ok(released) = (&mut self.receiver).await else {
            // The sender lives in the desk until it has sent.
            return std::future::pending().await;
        };
        self.taken = true;
        released
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut waiting = self.desk.waiting.lock();
        if self.desk.router.give_up(self.ticket) {
            waiting.remove(&self.ticket);
            return;
        }
        let slot = waiting.get_mut(&self.ticket).map(|slot| mem::replace(slot, Slot::Gone));
        drop(waiting);
        if slot.is_none()
            && let Ok(released) = self.receiver.try_recv()
        {
            self.desk.withdrawn(released.plan.reservation);
        }
    }
}
