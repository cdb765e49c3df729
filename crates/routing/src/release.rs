//! Requests that leave the router's queue.
//!
//! A call makes several steps. Each has three parts, of which the first and the last hold the router's
//! lock: pick a few requests, look up their overlaps in the index, compute their costs and bind those
//! that can begin. The first step is small, since mostly the first request takes the only open target,
//! and the next step finds none. The call is bounded by a [`ReleaseBudget`]; when there is more to do,
//! [`Router::next_release`] returns the time.
//!
//! [`ReleaseBudget`]: crate::queue::ReleaseBudget

use std::{cmp::Reverse, sync::Arc};

use kv_blocks::Moment;

use crate::{
    Job, ReleasedRequest, Router, Ticket,
    admission::{LentShare, RoomRule, RoomShortage},
    choice::{Choice, PlacementError},
    decide::ReservedChoice,
    ledger::Ledger,
    pool_split::PoolSplit,
    queue::{
        ExpectedTarget, PickRole, QueueEnd, QueueId, QueuedRequest, RELEASE_BUDGET, ReleaseBudget,
        ReleaseCandidate, ReleaseStep, TargetAvailability,
    },
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

/// How a picked request stands in the queue.
#[derive(Clone, Copy)]
struct QueueStanding {
    role: PickRole,
    queue: QueueId,
    overdue: bool,
    room_overdue: bool,
    waited_for_room: bool,
}

impl QueueStanding {
    /// Returns how a request stands; `None`: it has left the queue, or has other candidates now.
    fn of(now: Moment, state: &RouterState, pick: &ReleaseCandidate) -> Option<Self> {
        let request = state.queue.get(pick.ticket)?;
        Arc::ptr_eq(&request.job, &pick.job).then(|| Self {
            role: pick.role,
            queue: request.queue,
            overdue: request.terms.is_overdue(now),
            room_overdue: now >= request.room_until,
            waited_for_room: request.waits_for_room,
        })
    }

    /// Returns whether it may be bound, and was not picked for its estimate alone.
    fn may_go(&self) -> bool {
        self.waited_for_room || self.role != PickRole::Estimate
    }
}

/// The results of one pass over picked requests.
#[derive(Default)]
struct BindPass<'a> {
    /// Those that can begin, to be bound in their order.
    able: Vec<(PricedRequest<'a>, Choice<'a>)>,
    bound: Vec<BoundRequest<'a>>,
    /// Those that may be let in without room once all others have been tried.
    without_room: Vec<PricedRequest<'a>>,
    /// Queues whose first request takes the time of one target only: others take that of the rest.
    bound_to_target: Vec<QueueId>,
}

impl Router {
    /// Takes some of the requests that may start now out of the queue, and counts their load.
    /// [`Router::next_release`] returns whether there are more.
    pub(crate) fn release(&self, now: Moment) -> Vec<ReleasedRequest> {
        let (mut step, mut budget) = (ReleaseStep::First, RELEASE_BUDGET);
        let mut released = Vec::new();
        while budget.has_more() {
            let picks = self.next_picks(now, step, budget);
            if picks.is_empty() {
                break;
            }
            let priced = picks.iter().map(|pick| self.price(now, pick)).collect();
            let bound = self.bind(now, priced, budget.releases);
            budget.spend(&picks, bound.len());
            let plans = bound.into_iter();
            released.extend(plans.map(|bound| self.released_plan(now, bound)));
            step = ReleaseStep::Later;
        }
        released
    }

    /// Returns the requests to be priced in the next step; none if nothing is due.
    fn next_picks(
        &self,
        now: Moment,
        step: ReleaseStep,
        budget: ReleaseBudget,
    ) -> Vec<ReleaseCandidate> {
        let waiting = self.settings.load().queue;
        let RouterState { queue, ledger, .. } = &mut *self.state.lock();
        if queue.next_work().is_none_or(|then| then > now) {
            return Vec::new();
        }
        let availability = TargetAvailability::new(ledger, &waiting);
        queue.pick(now, availability, (step, budget))
    }

    /// Looks up the overlaps of a picked request.
    fn price<'a>(&self, now: Moment, pick: &'a ReleaseCandidate) -> PricedRequest<'a> {
        let split = PoolSplit::of(&pick.job());
        PricedRequest {
            pick,
            split,
            survey: self.survey(now, &split.decode, BlockCounting::Counted),
        }
    }

    /// Computes costs and binds the requests that can begin: the ones that are let in without room before
    /// all others, then the overdue ones in the order in which they were picked, and then the others in
    /// their order, until `most` are bound.
    fn bind<'a>(
        &self,
        now: Moment,
        mut priced: Vec<PricedRequest<'a>>,
        most: usize,
    ) -> Vec<BoundRequest<'a>> {
        // A request that is let in without room changes the choices of the others.
        priced.sort_by_key(|priced| priced.pick.role != PickRole::FirstForRoom);
        let mut pass = BindPass::default();
        let state = &mut *self.state.lock();
        for priced in priced {
            let Some(standing) = QueueStanding::of(now, state, priced.pick) else {
                self.offer_to_replaced(now, state, priced.pick);
                continue;
            };
            match self.rescore(now, state, &priced, self.room_rule(&priced.pick.job())) {
                Ok(choice) => {
                    self.bind_with_room(now, state, priced, (standing, choice), &mut pass);
                }
                Err(PlacementError::NoRoom(_, shortage)) => {
                    let lacking = (standing, *shortage);
                    self.bind_short_of_room(now, state, priced, lacking, &mut pass);
                }
                Err(_) if standing.overdue => state.queue.cannot_be_bound(priced.pick.ticket),
                Err(_) => {}
            }
        }
        let BindPass {
            able,
            mut bound,
            without_room,
            ..
        } = pass;
        self.bind_in_order(now, state, able, (&mut bound, most));
        // Time is lent when no request of the same queue can use it: all have been tried.
        for priced in &without_room {
            let has_budget = bound.len() < most;
            if has_budget && !state.queue.is_pass_due(now, priced.pick.ticket) {
                bound.extend(self.bind_without_room(now, state, priced, false));
            }
        }
        bound
    }

    /// Offers the open targets again to a request whose candidates were replaced while its overlaps
    /// were looked up: the pass has gone on, or ended, without it. With other targets it waits in
    /// another queue, which offers them.
    fn offer_to_replaced(&self, now: Moment, state: &mut RouterState, pick: &ReleaseCandidate) {
        let RouterState { queue, ledger, .. } = state;
        let targets = &pick.job.pool.set.targets;
        let request = queue.get(pick.ticket).filter(|request| {
            pick.role != PickRole::Estimate && request.job.pool.set.targets == *targets
        });
        let Some(id) = request.map(|request| request.queue) else {
            return;
        };
        let settings = self.settings.load();
        let availability = TargetAvailability::new(ledger, &settings.queue);
        queue.offer_all_again(now, id, availability);
    }

    /// Binds an overdue request that has room; another one may be bound in its order.
    fn bind_with_room<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        priced: PricedRequest<'a>,
        (standing, choice): (QueueStanding, Choice<'a>),
        pass: &mut BindPass<'a>,
    ) {
        let (ticket, settings) = (priced.pick.ticket, self.settings.load());
        state.queue.has_room(now, ticket, settings.queue.wait);
        if standing.overdue && standing.may_go() {
            pass.bound
                .extend(self.take_out(now, state, &priced, choice));
            return;
        }
        let estimate = (choice.winner().prefill_ms(), state.ttft_needs(&choice));
        state.queue.refresh(now, ticket, estimate, &settings.queue);
        if !standing.may_go() {
            return;
        }
        if self.can_begin(&priced, &choice, &state.ledger) {
            pass.able.push((priced, choice));
        } else {
            state.queue.pass_over(priced.pick);
        }
    }

    /// Binds an overdue request that has no room; another one waits for it.
    fn bind_short_of_room<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        priced: PricedRequest<'a>,
        (standing, shortage): (QueueStanding, RoomShortage),
        pass: &mut BindPass<'a>,
    ) {
        let (ticket, settings) = (priced.pick.ticket, self.settings.load());
        if standing.room_overdue && standing.may_go() {
            state.queue.wait_for_room(ticket, shortage, None);
            pass.bound.extend(self.bind_overdue(now, state, &priced));
        } else if state.queue.may_wait_for_room(ticket, &settings.queue) {
            self.wait_for_room(now, state, priced, (standing, shortage), pass);
        } else if standing.overdue && standing.may_go() {
            // There is no place for it among those that wait for room, who wait longer.
            pass.bound.extend(self.bind_overdue(now, state, &priced));
        }
    }

    /// Records that a request waits for room, and binds the first of its queue if a target lends it
    /// time.
    fn wait_for_room<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        priced: PricedRequest<'a>,
        (standing, shortage): (QueueStanding, RoomShortage),
        pass: &mut BindPass<'a>,
    ) {
        let ReleaseCandidate { ticket, job, .. } = priced.pick;
        let wait = (!standing.waited_for_room).then(|| {
            let targets = job.pool.set.targets.iter().copied();
            let terms = (targets, LentShare::Wanted);
            let asked = (&job.job(), &shortage);
            state.new_room_wait(now, &self.settings.load(), asked, terms)
        });
        state.queue.wait_for_room(*ticket, shortage, wait);
        if standing.role == PickRole::Room && pass.bound_to_target.contains(&standing.queue) {
            pass.without_room.push(priced);
        } else if standing.role == PickRole::FirstForRoom {
            if shortage.is_bound_to_target {
                pass.bound_to_target.push(standing.queue);
            }
            match self.bind_without_room(now, state, &priced, true) {
                Some(lent) => pass.bound.push(lent),
                None => pass.without_room.push(priced),
            }
        }
    }

    /// Binds an overdue request that has room nowhere.
    fn bind_overdue<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        priced: &PricedRequest<'a>,
    ) -> Option<BoundRequest<'a>> {
        let choice = self.rescore(now, state, priced, RoomRule::Ignored).ok()?;
        let bound = self.take_out(now, state, priced, choice)?;
        state.admission.overdue += 1;
        Some(bound)
    }

    /// Binds a request that has room nowhere, in the time that a target lends; `first`: only a target
    /// with all the credit that it may have, as others could use its time.
    fn bind_without_room<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        priced: &PricedRequest<'a>,
        first: bool,
    ) -> Option<BoundRequest<'a>> {
        let settings = self.settings.load();
        let targets = &priced.pick.job.pool.set.targets;
        if !state.has_credit(now, &settings, targets, first) {
            return None;
        }
        let choice = self.rescore(now, state, priced, RoomRule::Ignored);
        let mut choice = choice.ok()?;
        choice.move_to(state.lending_position(now, &settings, &choice, first)?);
        let (target, prefill_ms) = (choice.winner().target(), choice.winner().prefill_ms());
        let bound = self.take_out(now, state, priced, choice)?;
        state.lend(target, prefill_ms);
        // Another target may lend to the next one.
        let RouterState { queue, ledger, .. } = state;
        let availability = TargetAvailability::new(ledger, &settings.queue);
        queue.offer_all_again(now, bound.request.queue, availability);
        Some(bound)
    }

    /// Binds requests in their order, which changes with each one: its tenant has received more. At
    /// most `most` are bound, with those that were before.
    fn bind_in_order<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        mut able: Vec<(PricedRequest<'a>, Choice<'a>)>,
        (bound, most): (&mut Vec<BoundRequest<'a>>, usize),
    ) {
        let ageing = self.settings.load().queue.ageing;
        let before = bound.len();
        let mut sorted_at = None;
        loop {
            if sorted_at != Some(bound.len()) {
                if sorted_at.is_some() {
                    // Mostly the one that was bound has taken the only open target: to compute the
                    // costs of the others again would tell no more.
                    let RouterState { ledger, queue, .. } = &mut *state;
                    able.retain(|(priced, _)| {
                        let is_open = self.has_open_target(now, priced, ledger);
                        if !is_open {
                            queue.pass_over(priced.pick);
                        }
                        is_open
                    });
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
                let rule = self.room_rule(&priced.pick.job());
                self.rescore(now, state, &priced, rule).ok()
            };
            let can_begin = |choice: &Choice<'_>| self.can_begin(&priced, choice, &state.ledger);
            let Some(choice) = choice.filter(can_begin) else {
                state.queue.pass_over(priced.pick);
                continue;
            };
            if bound.len() >= most {
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
        if let Some(room) = request.room.as_ref().filter(|_| !request.waits_for_room) {
            state.admission.room += 1;
            let target = choice.winner().target();
            state.record_room(now, &self.settings.load(), target, &room.shortage);
        }
        let prompt = split.prompt(choice.winner());
        let settings = self.settings.load();
        let job = &split.decode;
        let spent = request.terms.target.map(|target| now.since(target.arrived));
        let spent = spent.unwrap_or(job.reply.slo.spent);
        let slo = state.slo_note(settings.slo_of(job), spent, (&choice, prompt));
        let reservation = state.reserve(now, job, &choice, prompt, &settings.queue);
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
                slo,
            },
        })
    }

    /// Returns whether a request can be bound by `choice` before its wait budget is used up.
    fn can_begin(&self, priced: &PricedRequest<'_>, choice: &Choice<'_>, ledger: &Ledger) -> bool {
        !self.waits_for_backlog(&priced.pick.job(), choice.deciding_policy)
            || !self.is_backed_up(choice, ledger)
    }

    /// Returns the choice at this moment, or why there is none: every target is above the busy
    /// threshold, or the request has no room. The request's work counts at the target of the choice
    /// from now on. Targets that were excluded when the job arrived stay excluded: the caller replaces
    /// the candidates when that changes.
    fn rescore<'a>(
        &self,
        now: Moment,
        state: &mut RouterState,
        priced: &PricedRequest<'a>,
        room: RoomRule,
    ) -> Result<Choice<'a>, PlacementError> {
        let settings = self.settings.load();
        let survey = priced.survey.clone();
        let (split, ticket) = (&priced.split, priced.pick.ticket);
        let place = state.queue.place_of(ticket, priced.pick.role);
        let choice = state.choose(now, (&split.decode, place), &settings, survey, room);
        let choice = choice.inspect_err(|_| state.queue.set_expected(ticket, None))?;
        let work = choice.work(split.decode.prompt.tokens, split.prompt(choice.winner()));
        let expected = ExpectedTarget::new(choice.winner().target(), work.prefill_ms);
        state.queue.set_expected(ticket, Some(expected));
        Ok(choice)
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
            room: request.room.and_then(|room| room.wait),
            plan: Box::new(plan),
        }
    }
}

impl ReleaseCandidate {
    fn job(&self) -> Job<'_> {
        self.job.job()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kv_blocks::{BlockSize, DpRank, Namespace, PromptIdentity, Target, WorkerId};
    use kv_index::{IndexSettings, KvIndex};

    use super::*;
    use crate::{
        CacheSource, Candidate, Dispatch, JobPrompt, LmcacheFacts, Overrides, RoutingSettings,
        TargetPool, Tiers, WaitBudget,
    };

    /// A worker whose cache is nearly full.
    fn candidate() -> Candidate {
        Candidate {
            target: Target {
                worker: WorkerId(1),
                rank: DpRank(0),
            },
            name: "w1".into(),
            namespace: Namespace {
                model: "m".into(),
                lora: None,
                salt: None,
                block_size: BlockSize::new(16).expect("a block size"),
                identity: PromptIdentity::Tokens,
            },
            weight: 1.0,
            cache: CacheSource::Events,
            total_blocks: Some(100),
            tiers: Tiers::default(),
            stream_state: None,
            health: "ready",
            lmcache: LmcacheFacts::default(),
            usage: Some(0.9),
            fetches: false,
        }
    }

    fn router() -> Router {
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        Router::new(RoutingSettings::default(), index)
    }

    /// A long prompt that may wait for one of these workers.
    fn patient(candidates: &[Candidate]) -> Job<'_> {
        Job {
            targets: TargetPool {
                candidates,
                ..TargetPool::default()
            },
            prompt: JobPrompt {
                tokens: 3_000,
                ..JobPrompt::default()
            },
            wait_budget: Some(WaitBudget {
                limit: Duration::from_secs(30),
                waited: Duration::ZERO,
                bytes: 100,
            }),
            ..Job::default()
        }
    }

    fn queued(router: &Router, job: &Job<'_>) -> Ticket {
        match router.decide(Moment::START, job) {
            Dispatch::Queued(ticket) => ticket,
            other => panic!("it does not wait: {other:?}"),
        }
    }

    #[test]
    fn a_request_whose_candidates_are_replaced_while_it_is_priced_is_offered_its_target_again() {
        let (router, candidates) = (router(), [candidate()]);
        let job = patient(&candidates);
        let Dispatch::Plan(running) = router.decide(Moment::START, &job) else {
            panic!("the worker is idle");
        };
        // The first one waits for a share of the cache, the other one for the worker.
        let first = queued(
            &router,
            &Job {
                busy_threshold: Some(0.4),
                overrides: Overrides {
                    priority: 1,
                    ..Overrides::default()
                },
                ..job
            },
        );
        let second = queued(&router, &job);
        let now = Moment::at(Duration::from_millis(50));
        {
            let state = &mut *router.state.lock();
            state.first_token(now, running.reservation);
            let queue = router.settings.load().queue;
            state.target_changed(now, running.decode.target, &queue);
        }
        let step = |step, replaced: Option<Ticket>| {
            let picks = router.next_picks(now, step, RELEASE_BUDGET);
            let priced = picks.iter().map(|pick| router.price(now, pick)).collect();
            if let Some(ticket) = replaced {
                assert!(router.replace_candidates(now, ticket, &job));
            }
            assert!(router.bind(now, priced, RELEASE_BUDGET.releases).is_empty());
            let next = picks.iter().find(|pick| pick.role == PickRole::Next);
            next.map(|pick| pick.ticket)
        };
        assert_eq!(step(ReleaseStep::First, None), Some(first));
        assert_eq!(step(ReleaseStep::Later, Some(second)), Some(second));
        assert_eq!(router.next_release(now), Some(now));
        let released = router.take_released(now);
        let tickets: Vec<Ticket> = released.iter().map(|released| released.ticket).collect();
        assert_eq!(tickets, [second]);
    }

    #[test]
    fn a_request_that_is_left_is_before_others_only_in_the_pass_that_tried_it() {
        for (role, begins_anew, is_before) in [
            (PickRole::Next, false, true),
            (PickRole::Next, true, false),
            // It has found room, and the pass comes to it in its turn.
            (PickRole::Room, false, false),
        ] {
            let (router, candidates) = (router(), [candidate()]);
            let job = patient(&candidates);
            let Dispatch::Plan(running) = router.decide(Moment::START, &job) else {
                panic!("the worker is idle");
            };
            let [first, second, third] = [(); 3].map(|()| queued(&router, &job));
            let (now, target) = (Moment::at(Duration::from_millis(50)), running.decode.target);
            let open = |state: &mut RouterState| {
                let queue = router.settings.load().queue;
                state.target_changed(now, target, &queue);
            };
            {
                let state = &mut *router.state.lock();
                state.first_token(now, running.reservation);
                open(state);
            }
            let mut picks = router.next_picks(now, ReleaseStep::First, RELEASE_BUDGET);
            let tickets: Vec<Ticket> = picks.iter().map(|pick| pick.ticket).collect();
            assert_eq!(tickets, [first, third]);
            picks[1].role = role;
            let priced = picks.iter().map(|pick| router.price(now, pick)).collect();
            if begins_anew {
                open(&mut router.state.lock());
            }
            // The first one takes the worker, and the other one is left.
            let bound = router.bind(now, priced, RELEASE_BUDGET.releases);
            assert_eq!(bound.len(), 1);
            let state = &*router.state.lock();
            let place = state.queue.place_of(second, PickRole::Next);
            let before_ms = state.queue.waiting_ms(target, place, || 0.0);
            assert_eq!(before_ms > 0.0, is_before, "{role:?} {begins_anew}");
        }
    }
}
