//! Picks the requests to be priced next: the overdue ones, and the next ones of the queues whose
//! pass is due.

use std::sync::Arc;

use kv_blocks::Moment;

use super::{
    QueueId, QueuedJob, TargetAvailability, WaitQueue, candidate_queue::CandidateQueue,
    passed_over::PassNumber,
};
use crate::Ticket;

/// What one call may do for queued requests; the caller repeats the call if there is more. Each step
/// of a call keeps to what is left of it, and so does each critical section under the router's lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleaseBudget {
    /// Requests bound.
    pub(crate) releases: usize,
    /// Candidates priced, over all picked requests; one request is priced however many it has.
    pub(crate) priced: usize,
    /// Queues whose requests are compared in one step.
    pub(crate) queues: usize,
    /// Targets that are checked for being open in one step; one queue is checked however many it has.
    pub(crate) checks: usize,
}

impl ReleaseBudget {
    /// Returns whether another step may be made.
    pub(crate) fn has_more(&self) -> bool {
        self.releases > 0 && self.priced > 0
    }

    /// Counts a step that priced these requests and bound so many of them.
    pub(crate) fn spend(&mut self, picks: &[ReleaseCandidate], bound: usize) {
        let candidates = |pick: &ReleaseCandidate| pick.job.pool.set.candidates.len();
        let priced: usize = picks.iter().map(candidates).sum();
        let priced = priced.max(LEAST_OF_STEP);
        self.priced = self.priced.saturating_sub(priced);
        self.releases = self.releases.saturating_sub(bound);
    }
}

/// About 50 us with 8 to 64 candidates; with more than 120 as long as one request takes.
pub(crate) const RELEASE_BUDGET: ReleaseBudget = ReleaseBudget {
    releases: 4,
    priced: 120,
    queues: 8,
    checks: 1024,
};

/// The least that a step counts in candidates: where requests have few, the rest of a step takes longer
/// than their costs.
const LEAST_OF_STEP: usize = 4;

/// Most requests that one step tries of each of several queues: their requests may contend for a
/// target, so the step compares them.
///
/// Of the only queue that is due the first step of a pass tries one: often one target is open, and the
/// next request takes it. Each further step tries as many as the steps before it, up to this number. It
/// begins with the tenant that is next and goes on to the others as if each request were bound: those of
/// one tenant that can use no open target do not keep all others behind them.
const MOST_IN_ORDER: usize = 4 * RELEASE_BUDGET.releases;

/// Requests of one queue that wait for room and are tried in one step; two are, however little budget is
/// left.
const MOST_FOR_ROOM: usize = 4;

/// Requests whose estimates each pass refreshes beside those that it tries. A pass mostly binds one
/// request, so with 1 each request is estimated again about once while it waits, however many do.
const STALE_PER_PASS: usize = 1;

/// The step of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseStep {
    /// It tries some of those that wait for room, which may go before the others.
    First,
    /// It tries them only if it ends the pass: what the others leave is lent to them.
    Later,
}

/// How far one step continues the pass of a queue.
#[derive(Clone, Copy, Debug)]
struct PassStep {
    of_call: ReleaseStep,
    /// Requests tried in order.
    in_order: usize,
    /// Requests of this queue that the budget allows.
    share: usize,
}

/// A request to be priced.
#[derive(Debug)]
pub(crate) struct ReleaseCandidate {
    pub(crate) ticket: Ticket,
    pub(crate) job: Arc<QueuedJob>,
    pub(crate) role: PickRole,
    /// The pass of its queue at that time.
    pub(crate) pass: PassNumber,
}

/// Why a request is priced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PickRole {
    /// It is the next one, or overdue, and may be bound.
    Next,
    /// To refresh its estimate only.
    Estimate,
    /// It waits for room and may be bound if it has some.
    Room,
    /// The same; it is also the first that is let in without room.
    FirstForRoom,
}

/// The requests of one queue that are picked.
#[derive(Debug, Default)]
struct QueuePicks {
    next: Vec<Ticket>,
    stale: Vec<Ticket>,
    room: Vec<Ticket>,
}

impl QueuePicks {
    fn len(&self) -> usize {
        self.next.len() + self.stale.len() + self.room.len()
    }

    /// Returns the requests, each with its first role.
    fn roles(self) -> impl Iterator<Item = (Ticket, PickRole)> {
        let next = self.next.into_iter();
        let room = self.room.into_iter().enumerate();
        let stale = self.stale.into_iter();
        let of_room = |(position, ticket): (usize, Ticket)| match position {
            0 => (ticket, PickRole::FirstForRoom),
            _ => (ticket, PickRole::Room),
        };
        next.map(|ticket| (ticket, PickRole::Next))
            .chain(room.map(of_room))
            .chain(stale.map(|ticket| (ticket, PickRole::Estimate)))
    }
}

/// The requests picked so far.
struct PickList {
    requests: Vec<ReleaseCandidate>,
    /// Candidates that may still be priced.
    left: usize,
}

impl PickList {
    /// Returns whether a request with this many candidates may be added; the first one always may.
    fn fits(&self, candidates: usize) -> bool {
        self.requests.is_empty() || self.left >= candidates
    }
}

impl WaitQueue {
    /// Returns the requests to be priced in the next step. Each step makes progress: a returned request
    /// leaves the queue or is passed over.
    pub(crate) fn pick(
        &mut self,
        now: Moment,
        availability: TargetAvailability<'_>,
        (step, budget): (ReleaseStep, ReleaseBudget),
    ) -> Vec<ReleaseCandidate> {
        let mut picks = PickList {
            requests: Vec::new(),
            left: budget.priced,
        };
        self.pick_overdue(now, budget.releases, &mut picks);
        self.pick_in_order(now, availability, (step, budget), &mut picks);
        picks.requests
    }

    /// Returns overdue requests of all queues in the order in which they were due, for half of the
    /// budget.
    fn pick_overdue(&self, now: Moment, most: usize, picks: &mut PickList) {
        let half = picks.left / 2;
        // The first request of a queue beyond these is due later than the first of each of them.
        let queues = self.queues.overdue(now).take(most);
        let mut overdue: Vec<(Moment, Ticket)> = queues
            .flat_map(|queue| queue.overdue(now).take(most))
            .collect();
        overdue.sort_unstable();
        for (_, ticket) in overdue.into_iter().take(most) {
            let Some(request) = self.requests.get(&ticket) else {
                continue;
            };
            let candidates = request.job.pool.set.candidates.len();
            if !picks.fits(half + candidates) {
                break;
            }
            picks.left = picks.left.saturating_sub(candidates);
            picks.requests.push(ReleaseCandidate {
                ticket,
                job: Arc::clone(&request.job),
                role: PickRole::Next,
                pass: self.pass_of(request.queue),
            });
        }
    }

    /// Returns the next requests of the queues that have waited longest for a pass, and a few whose
    /// estimates are old.
    fn pick_in_order(
        &mut self,
        now: Moment,
        availability: TargetAvailability<'_>,
        (step, budget): (ReleaseStep, ReleaseBudget),
        picks: &mut PickList,
    ) {
        let ids: Vec<QueueId> = self.queues.due_for_pass(now).take(budget.queues).collect();
        let mut checks = budget.checks;
        for (position, id) in ids.iter().enumerate() {
            let Some(queue) = self.queues.get(*id) else {
                continue;
            };
            let (targets, tried) = (queue.targets.len().max(1), queue.tried());
            if !picks.fits(targets) || (position > 0 && checks < targets) {
                break;
            }
            checks = checks.saturating_sub(targets);
            // One third is for estimates that may be old; the rest is shared with the following
            // queues.
            let share = picks.left * 2 / 3 / (ids.len() - position) / targets;
            let pass_step = PassStep {
                of_call: step,
                in_order: if ids.len() == 1 {
                    share.min(tried.clamp(1, MOST_IN_ORDER))
                } else {
                    share.min(MOST_IN_ORDER)
                },
                share,
            };
            let picked = self.continue_pass(now, *id, availability, pass_step);
            let pass = self.pass_of(*id);
            picks.left = picks.left.saturating_sub(picked.len() * targets);
            let mut known: Vec<Ticket> = picks.requests.iter().map(|pick| pick.ticket).collect();
            for (ticket, role) in picked.roles() {
                if let Some(request) = self
                    .requests
                    .get(&ticket)
                    .filter(|_| !known.contains(&ticket))
                {
                    known.push(ticket);
                    picks.requests.push(ReleaseCandidate {
                        ticket,
                        job: Arc::clone(&request.job),
                        role,
                        pass,
                    });
                }
            }
        }
    }

    /// Returns the number of the pass of a queue.
    fn pass_of(&self, id: QueueId) -> PassNumber {
        let queue = self.queues.get(id);
        queue.map_or_else(PassNumber::default, |queue| queue.passed_over.pass())
    }

    /// Continues the pass of a queue; returns the next requests in order, at its beginning some whose
    /// estimates are old, and of those that wait for room the first ones.
    fn continue_pass(
        &mut self,
        now: Moment,
        id: QueueId,
        availability: TargetAvailability<'_>,
        step: PassStep,
    ) -> QueuePicks {
        self.demote_late(now, id);
        let passed = self.queues.change(id, |queue| {
            if !queue.start_or_resume_pass(now, &availability) {
                return None;
            }
            let begins = queue.tried() == 0;
            let next = queue.take_next(step.in_order);
            let most = most_stale(queue, step.share);
            let stale = if begins && queue.len() > next.len() {
                queue.take_stale(most)
            } else {
                Vec::new()
            };
            let is_finished = queue.is_pass_finished();
            if is_finished {
                queue.end_pass(now, &availability);
            } else {
                queue.resume_pass(now);
            }
            Some((next, stale, is_finished))
        });
        let Some((next, stale, is_finished)) = passed else {
            return QueuePicks::default();
        };
        let stale = stale
            .into_iter()
            .filter(|ticket| !next.contains(ticket))
            .collect();
        let tries_room = is_finished || step.of_call == ReleaseStep::First;
        let queue = self.queues.get_mut(id).filter(|_| tries_room);
        let room = queue.map_or_else(Vec::new, |queue| {
            queue.take_for_room(step.share.min(MOST_FOR_ROOM))
        });
        QueuePicks { next, stale, room }
    }
}

/// Returns how many estimates a pass refreshes, where the budget allows `share` requests. Those that
/// wait for room are found by it: each may fit where those before it do not.
fn most_stale(queue: &CandidateQueue, share: usize) -> usize {
    if queue.room().len() > 0 {
        STALE_PER_PASS.max(share / 2)
    } else {
        STALE_PER_PASS
    }
}
