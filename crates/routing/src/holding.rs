//! Who is held, and who may go: the router's side of the queue.

use std::mem;

use kv_blocks::Moment;

use crate::{
    Job, Patience, Policy, QueueSettings, Released, Router, Ticket,
    choice::Choice,
    policy::Contender,
    pools::{Prefill, Prompt, Split},
    queue::{Place, Queue},
    router::{Blocks, Weighed, prefill_ms},
    state::State,
};

impl State {
    /// Holds a job; `None`: the queue is full.
    pub(crate) fn hold(
        &mut self,
        now: Moment,
        job: &Job<'_>,
        choice: &Choice<'_>,
        patience: Patience,
        settings: &QueueSettings,
    ) -> Option<Ticket> {
        let targets = choice.scene.contenders.iter().map(Contender::target);
        self.ledger.note_backlogs(now, targets, choice.newcomer_cold_tokens);
        self.queue.has_room(settings, patience.bytes).then(|| self.queue.push(now, job, patience))
    }
}

impl Router {
    /// How long a job may wait, if it has to: where the choice fell it would have to wait as well, or others are held,
    /// and whether it goes before them is for the queue to say.
    ///
    /// Only `warm` holds: the others are what they are elsewhere, and bind at once. Who asked for a worker by name gets it,
    /// and a prompt that another pool computes does not stand in the queue of the one that generates.
    pub(crate) fn may_wait(&self, job: &Job<'_>, choice: &Choice<'_>, state: &State) -> Option<Patience> {
        let holds = self.settings.load().queue.enabled
            && choice.ruling == Policy::Warm
            && job.pin.is_none()
            && job.prefill.is_none();
        job.patience.filter(|_| holds && (state.queue.len() > 0 || self.is_backed_up(choice)))
    }

    fn is_backed_up(&self, choice: &Choice<'_>) -> bool {
        choice.winner().standing.backlog_ms > self.settings.load().queue.hold_above.as_secs_f64() * 1e3
    }

    /// Takes out of the queue who may go now, and counts their load.
    pub(crate) fn release(&self, now: Moment, state: &mut State) -> Vec<Released> {
        let mut released = Vec::new();
        if state.queue.len() == 0 {
            return released;
        }
        // Looking at the queue needs the rest of the state.
        let mut queue = mem::take(&mut state.queue);
        while self.may_release(now, state, &queue)
            && let Some(ticket) = self.next(now, state, &queue)
            && let Some(waiting) = queue.remove(ticket)
        {
            let job = waiting.job.job();
            let weighed = self.weigh_again(now, state, &job);
            let reservation = state.reserve(now, &job, &weighed.choice, Prompt::Here);
            if let Some(promised) = self.expect_blocks(now, &weighed.choice, 0.0) {
                state.ledger.promised(reservation, promised);
            }
            released.push(Released {
                ticket,
                held: now.since(waiting.since),
                plan: Box::new(self.plan(waiting.since, &Split::of(&job), weighed, Prefill::default(), reservation)),
            });
        }
        state.queue = queue;
        released
    }

    /// Whether it is worth looking at the queue one by one.
    fn may_release(&self, now: Moment, state: &State, queue: &Queue) -> bool {
        let overdue = queue.first_overdue().is_some_and(|then| now >= then);
        overdue || state.ledger.anyone_below(now, self.settings.load().queue.hold_above)
    }

    /// The request that goes next, if its target can begin or it has waited long enough.
    fn next(&self, now: Moment, state: &mut State, queue: &Queue) -> Option<Ticket> {
        let mut best: Option<(Place, Ticket)> = None;
        for (ticket, waiting) in queue.oldest() {
            let job = waiting.job.job();
            let weighed = self.weigh_again(now, state, &job);
            if self.is_backed_up(&weighed.choice) && !waiting.is_overdue(now) {
                continue;
            }
            let place = waiting.place(now, &self.settings.load().queue, prefill_ms(&job, &weighed.choice));
            if best.is_none_or(|(before, _)| place.goes_before(&before)) {
                best = Some((place, ticket));
            }
        }
        best.map(|(_, ticket)| ticket)
    }

    /// The choice as it is by now. What was ruled out when the job came still is: its caller asks anew when that changes.
    fn weigh_again<'a>(&self, now: Moment, state: &mut State, job: &Job<'a>) -> Weighed<'a> {
        let survey = self.survey(now, job, Blocks::Counted);
        let policy = self.policy(job.policy);
        let choice = state.choose(now, job, policy, &self.settings.load(), survey);
        Weighed { choice, excluded: job.excluded.to_vec(), started_us: 0.0, hash_us: 0.0, lookup_us: 0.0 }
    }
}
