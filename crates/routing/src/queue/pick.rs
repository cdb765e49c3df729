//! Picks the requests to be priced next: the overdue ones, and the next ones of the queues whose
//! pass is due.

use std::sync::Arc;

use kv_blocks::Moment;

use super::{QueueId, QueuedJob, TargetAvailability, WaitQueue};
use crate::Ticket;

/// The limits of one critical section under the router's lock for queued requests; the caller repeats the call if
/// there is more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleaseBudget {
    /// Requests bound.
    pub(crate) releases: usize,
    /// Candidates priced, over all picked requests; one request is priced however many it has.
    pub(crate) priced: usize,
    /// Queues whose requests are compared.
    pub(crate) queues: usize,
    /// Targets that are checked for being open; one queue is checked however many it has.
    pub(crate) checks: usize,
}

/// About 50 us with 8 to 64 candidates; with more than 120 as long as one request takes.
pub(crate) const RELEASE_BUDGET: ReleaseBudget = ReleaseBudget {
    releases: 4,
    priced: 120,
    queues: 8,
    checks: 1024,
};

/// Requests of one queue that are tried for each that may be bound: the next one is often the one
/// that can.
const MOST_IN_ORDER: usize = 4 * RELEASE_BUDGET.releases;

/// A request to be priced.
#[derive(Debug)]
pub(crate) struct ReleaseCandidate {
    pub(crate) ticket: Ticket,
    pub(crate) job: Arc<QueuedJob>,
    /// Whether it may be bound; otherwise it is priced only to refresh its estimate.
    pub(crate) may_go: bool,
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
    /// Returns the requests to be priced next. Each call makes progress: a returned request leaves
    /// the queue or is passed over.
    pub(crate) fn pick(
        &mut self,
        now: Moment,
        availability: TargetAvailability<'_>,
        budget: ReleaseBudget,
    ) -> Vec<ReleaseCandidate> {
        let mut picks = PickList {
            requests: Vec::new(),
            left: budget.priced,
        };
        self.pick_overdue(now, budget.releases, &mut picks);
        self.pick_in_order(now, availability, budget, &mut picks);
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
                may_go: true,
            });
        }
    }

    /// Returns the next requests of the queues that have waited longest for a pass, and a few whose
    /// estimates are old.
    fn pick_in_order(
        &mut self,
        now: Moment,
        availability: TargetAvailability<'_>,
        budget: ReleaseBudget,
        picks: &mut PickList,
    ) {
        let ids: Vec<QueueId> = self.queues.due_for_pass(now).take(budget.queues).collect();
        let mut checks = budget.checks;
        for (position, id) in ids.iter().enumerate() {
            let Some(targets) = self.queues.get(*id).map(|queue| queue.targets.len().max(1)) else {
                continue;
            };
            if !picks.fits(targets) || (position > 0 && checks < targets) {
                break;
            }
            checks = checks.saturating_sub(targets);
            // One third is for estimates that may be old; the rest is shared with the following
            // queues.
            let share = picks.left * 2 / 3 / (ids.len() - position) / targets;
            let (next, stale) = self.continue_pass(now, *id, availability, share);
            picks.left = picks
                .left
                .saturating_sub((next.len() + stale.len()) * targets);
            let known: Vec<Ticket> = picks.requests.iter().map(|pick| pick.ticket).collect();
            for (ticket, may_go) in next
                .iter()
                .map(|next| (next, true))
                .chain(stale.iter().map(|stale| (stale, false)))
            {
                if let Some(request) = self
                    .requests
                    .get(ticket)
                    .filter(|_| !known.contains(ticket))
                {
                    picks.requests.push(ReleaseCandidate {
                        ticket: *ticket,
                        job: Arc::clone(&request.job),
                        may_go,
                    });
                }
            }
        }
    }

    /// Continues the pass of a queue by `share` requests; returns the next ones, and those of half
    /// as many whose estimates are old.
    fn continue_pass(
        &mut self,
        now: Moment,
        id: QueueId,
        availability: TargetAvailability<'_>,
        share: usize,
    ) -> (Vec<Ticket>, Vec<Ticket>) {
        let (next, stale) = self.queues.change(id, |queue| {
            if !queue.start_or_resume_pass(now, &availability) {
                return (Vec::new(), Vec::new());
            }
            let next = queue.take_next(share.min(MOST_IN_ORDER));
            let stale = if queue.len() > next.len() {
                queue.take_stale(share / 2)
            } else {
                Vec::new()
            };
            if queue.is_pass_finished() {
                queue.end_pass(now, &availability);
            } else {
                queue.resume_pass(now);
            }
            (next, stale)
        });
        let stale = stale
            .into_iter()
            .filter(|ticket| !next.contains(ticket))
            .collect();
        (next, stale)
    }
}
