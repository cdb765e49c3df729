//! Requests that leave the router's queue.
//!
//! Requests are released in three steps; the first and the last hold the router's lock: pick a few,
//! look up their overlaps in the index, compute their costs and bind those that can begin. Each
//! step is bounded by a [`ReleaseBudget`]; when there is more to do, [`Router::next_release`]
//! returns the time.
//!
//! [`ReleaseBudget`]: crate::queue::ReleaseBudget

use std::{cmp::Reverse, sync::Arc};

use kv_blocks::Moment;

use crate::{
    Job, ReleasedRequest, Router, Ticket,
    choice::Choice,
    decide::ReservedChoice,
    ledger::Ledger,
    pool_split::PoolSplit,
    queue::{QueueEnd, QueuedRequest, RELEASE_BUDGET, ReleaseCandidate, TargetAvailability},
    state::RouterState,
    survey::{BlockCounting, OverlapSurvey},
};

/// A request that left the queue with its load counted.
struct BoundRequest<'a> {
    ticket: Ticket,
    request: QueuedRequest,
    reserved: ReservedChoice<'a>,
}

/// A request whose costs are being computed.
struct PricedRequest<'a> {
    pick: &'a ReleaseCandidate,
    split: PoolSplit<'a>,
    survey: OverlapSurvey<'a>,
}

impl Router {
    /// Takes some of the requests that may start now out of the queue, and counts their load.
    /// [`Router::next_release`] returns whether there are more.
    pub(crate) fn release(&self, now: Moment) -> Vec<ReleasedRequest> {
        let picks = {
            let waiting = self.settings.load().queue;
            let RouterState { queue, ledger, .. } = &mut *self.state.lock();
            if queue.next_work().is_none_or(|then| then > now) {
                return Vec::new();
            }
            queue.pick(
                now,
                TargetAvailability::new(ledger, &waiting),
                RELEASE_BUDGET,
            )
        };
        let price = |pick| {
            let split = PoolSplit::of(&ReleaseCandidate::job(pick));
            PricedRequest {
                pick,
                split,
                survey: self.survey(now, &split.decode, BlockCounting::Counted),
            }
        };
        let priced: Vec<PricedRequest<'_>> = picks.iter().map(price).collect();
        let bound = self.bind(now, priced);
        bound
            .into_iter()
            .map(|bound| self.released_plan(now, bound))
            .collect()
    }

    /// Computes costs and binds the requests that can begin, in their order: first the overdue
    /// ones, in the order in which they were picked, then the others.
    fn bind<'a>(&self, now: Moment, priced: Vec<PricedRequest<'a>>) -> Vec<BoundRequest<'a>> {
        let mut able = Vec::with_capacity(priced.len());
        let mut bound = Vec::with_capacity(RELEASE_BUDGET.releases);
        let settings = self.settings.load();
        let state = &mut *self.state.lock();
        for priced in priced {
            let ReleaseCandidate {
                ticket,
                job,
                may_go,
            } = priced.pick;
            let known = state
                .queue
                .get(*ticket)
                .filter(|request| Arc::ptr_eq(&request.job, job));
            let Some(terms) = known.map(|request| request.terms) else {
                continue;
            };
            let overdue = terms.is_overdue(now);
            match self.rescore(now, state, &priced) {
                None if overdue => state.queue.cannot_be_bound(*ticket),
                None => {}
                Some(choice) if overdue && *may_go => {
                    bound.extend(self.take_out(now, state, &priced, choice));
                }
                Some(choice) => {
                    let uncached_ms = choice.winner().prefill_ms();
                    state.queue.refresh(*ticket, uncached_ms, &settings.queue);
                    if *may_go && self.can_begin(&priced, &choice, &state.ledger) {
                        able.push((priced, choice));
                    }
                }
            }
        }
        self.bind_in_order(now, state, able, &mut bound);
        bound
    }

    /// Binds requests in their order, which changes with each one: its tenant has received more.
    fn bind_in_order<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        mut able: Vec<(PricedRequest<'a>, Choice<'a>)>,
        bound: &mut Vec<BoundRequest<'a>>,
    ) {
        let ageing = self.settings.load().queue.ageing;
        let before = bound.len();
        let mut sorted_at = None;
        loop {
            if sorted_at != Some(bound.len()) {
                if sorted_at.is_some() {
                    // Mostly the one that was bound has taken the only open target: to compute the
                    // costs of the others again would tell no more.
                    let ledger = &mut state.ledger;
                    able.retain(|(priced, _)| self.has_open_target(now, priced, ledger));
                }
                // The next one is the last.
                able.sort_by_cached_key(|(priced, _)| {
                    let ticket = priced.pick.ticket;
                    Reverse((state.queue.key(now, ageing, ticket), ticket))
                });
                sorted_at = Some(bound.len());
            }
            let Some((priced, choice)) = able.pop() else {
                return;
            };
            // A request before this one may have taken the target.
            let choice = if bound.len() == before {
                Some(choice)
            } else {
                self.rescore(now, state, &priced)
            };
            let can_begin = |choice: &Choice<'_>| self.can_begin(&priced, choice, &state.ledger);
            let Some(choice) = choice.filter(can_begin) else {
                continue;
            };
            if bound.len() >= RELEASE_BUDGET.releases {
                let target = choice.winner().target();
                state.queue.offer_again(now, priced.pick.ticket, target);
                return;
            }
            bound.extend(self.take_out(now, state, &priced, choice));
        }
    }

    /// Returns whether a request may begin on any of its targets. Where not, [`Self::can_begin`] is
    /// false for every choice that could be made now: the winner is one of these targets, and its
    /// backlog is the one that is compared here. Binding others only adds to the backlogs, so it
    /// stays so until the end of the call.
    fn has_open_target(
        &self,
        now: Moment,
        priced: &PricedRequest<'_>,
        ledger: &mut Ledger,
    ) -> bool {
        let job = priced.pick.job();
        // Under a policy that may let `warm` decide, only a choice tells whether a backlog matters;
        // `warm` itself lets no other decide.
        if !self.waits_for_backlog(&job, self.policy(job.targets.policy)) {
            return true;
        }
        let longest = self
            .settings
            .load()
            .queue
            .longest_backlog(ledger.replicas());
        let mut targets = job.targets.candidates.iter().map(|known| known.target);
        // As a choice does first.
        ledger.expire_prefills_on(now, targets.clone());
        targets.any(|target| ledger.is_below(now, target, longest))
    }

    /// Takes a request out of the queue and counts its load; `None`: it is no longer queued.
    fn take_out<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        &PricedRequest { pick, split, .. }: &PricedRequest<'a>,
        choice: Choice<'a>,
    ) -> Option<BoundRequest<'a>> {
        let request = state.queue.remove(pick.ticket, QueueEnd::Bound)?;
        let prompt = split.prompt(choice.winner());
        let queue = &self.settings.load().queue;
        let reservation = state.reserve(now, &split.decode, &choice, prompt, queue);
        let work = choice.work(split.decode.prompt.tokens, prompt);
        let share = (&split.decode.tenant(), Some(request.share));
        state.queue.charge(reservation, share, work);
        Some(BoundRequest {
            ticket: pick.ticket,
            request,
            reserved: ReservedChoice {
                split,
                choice,
                reservation,
            },
        })
    }

    /// Returns whether a request can be bound by `choice` before its wait budget is used up.
    fn can_begin(&self, priced: &PricedRequest<'_>, choice: &Choice<'_>, ledger: &Ledger) -> bool {
        !self.waits_for_backlog(&priced.pick.job(), choice.deciding_policy)
            || !self.is_backed_up(choice, ledger)
    }

    /// Returns the choice at this moment; `None`: every target is above the busy threshold. Targets
    /// that were excluded when the job arrived stay excluded: the caller replaces the candidates
    /// when that changes.
    fn rescore<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        priced: &PricedRequest<'a>,
    ) -> Option<Choice<'a>> {
        let settings = self.settings.load();
        let survey = priced.survey.clone();
        state
            .choose(now, &priced.split.decode, &settings, survey)
            .ok()
    }

    /// Plans a released request, outside the lock under which it was bound.
    fn released_plan(&self, now: Moment, bound: BoundRequest<'_>) -> ReleasedRequest {
        let BoundRequest {
            ticket,
            request,
            reserved,
        } = bound;
        let since = request.terms.since;
        let plan = self.plan(now, since, reserved);
        ReleasedRequest {
            ticket,
            waited: now.since(since),
            plan: Box::new(plan),
        }
    }
}

impl ReleaseCandidate {
    fn job(&self) -> Job<'_> {
        self.job.job()
    }
}
