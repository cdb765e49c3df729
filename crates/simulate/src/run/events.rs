//! The events of a simulation: arrivals, steps, releases and ticks.

use std::{sync::Arc, time::Duration};

use engine_model::{EmittedToken, NamedRequest, RequestId};
use kv_blocks::Moment;
use routing::{
    Dispatch, ExpectedReply, Job, JobAffinity, JobPrompt, JobSlo, JobTenant, ModelRoutingEntry,
    Overrides, Plan, ReleasedRequest, ReportedWork, TargetPool, WaitBudget,
};

use super::{Simulation, exchange::LoadMessage, prompt::PlayedPrompt};
use crate::{
    engines::NextWake,
    outcome::{Placement, RequestResult},
    wire::StepAnnouncement,
};

/// Interval of the router's ticks, as in `warmroute serve`.
const TICK: Duration = Duration::from_secs(1);

/// Time after which the client of a closed loop sends a refused request again.
const RETRY: Duration = Duration::from_secs(1);

/// An event at a moment.
#[derive(Debug)]
pub(super) enum SimulationEvent {
    Arrival(usize),
    /// A refused request comes again.
    Retry(usize),
    StepEnd(usize),
    /// An engine must be woken.
    Wake(usize),
    Message(StepAnnouncement),
    /// The router loses its view of an engine's cache.
    Forget(usize),
    /// Queued requests of a router may be released.
    Release(usize),
    /// A router sends its changes to the others.
    SendLoad(usize),
    Load(Box<LoadMessage>),
    /// A router sends pages to another one that asked for them.
    SendPages {
        from: usize,
        to: usize,
    },
    Tick,
}

impl Simulation<'_> {
    /// Handles events until every request is finished, or the time is over.
    pub(super) fn play(&mut self) {
        match &mut self.sessions {
            None => self.expect_arrival(0),
            Some(sessions) => {
                for arrival in sessions.start() {
                    self.expect(arrival);
                }
            }
        }
        self.events.put(Moment::START + TICK, SimulationEvent::Tick);
        for forgotten in &self.cell.faults.forgotten {
            self.events.put(
                Moment::at(forgotten.at),
                SimulationEvent::Forget(forgotten.worker as usize),
            );
        }
        while self.open > 0
            && let Some((now, what)) = self.events.next()
            && now <= self.end
        {
            if let Some(sessions) = &mut self.sessions
                && sessions.begins_to_measure(now)
            {
                self.computed_before = self.engines.computed_tokens();
            }
            match what {
                SimulationEvent::Arrival(request) => self.arrive(now, request),
                SimulationEvent::Retry(request) => self.decide(now, request),
                SimulationEvent::StepEnd(worker) => self.end_step(now, worker),
                SimulationEvent::Wake(worker) => self.run_engine(now, worker),
                SimulationEvent::Message(message) => self.wire.deliver(&message),
                SimulationEvent::Forget(worker) => self.forget(worker),
                SimulationEvent::Release(router) => self.release(now, router),
                SimulationEvent::SendLoad(router) => self.send_load(now, router),
                SimulationEvent::Load(message) => self.deliver_load(now, *message),
                SimulationEvent::SendPages { from, to } => self.send_pages(now, from, to),
                SimulationEvent::Tick => self.tick(now),
            }
            self.schedule_messages(now);
        }
    }

    fn expect_arrival(&mut self, request: usize) {
        if let Some(outcome) = self.requests.get(request) {
            self.events
                .put(outcome.arrival, SimulationEvent::Arrival(request));
        }
    }

    /// Adds a request of a closed loop, which will arrive at this time.
    fn expect(&mut self, arrival: Moment) {
        let request = self.requests.len();
        self.requests.push(RequestResult::pending(arrival));
        self.events.put(arrival, SimulationEvent::Arrival(request));
    }

    fn arrive(&mut self, now: Moment, request: usize) {
        match &mut self.sessions {
            Some(sessions) => sessions.arrived(request),
            None => {
                self.expect_arrival(request + 1);
                if request == self.warm_up() {
                    self.computed_before = self.engines.computed_tokens();
                }
            }
        }
        self.decide(now, request);
    }

    fn decide(&mut self, now: Moment, request: usize) {
        let Some((traced, prompt)) = self.traced(request).zip(self.prompt(request)) else {
            return;
        };
        let session = (prompt.turn)
            .filter(|_| self.cell.sessions)
            .map(|turn| Arc::new(turn.keys()));
        let weights = self.cell.tenants.as_ref();
        let tenant = weights.zip(traced.tenant).map(|(weights, tenant)| {
            let weight = weights.get(&tenant).copied().unwrap_or(1.0);
            (Arc::from(tenant.to_string()), weight)
        });
        let named = traced.model.as_ref();
        let own = named.map(|model| self.models.of(&model.id, &model.base));
        let job = Job {
            targets: TargetPool {
                candidates: &self.engines.candidates,
                policy: own.and_then(|own| own.policy),
                ..TargetPool::default()
            },
            overrides: own.map_or_else(Overrides::default, |own| self.overrides_of(own)),
            prompt: JobPrompt {
                blocks: Some(&prompt.blocks),
                tokens: traced.prompt_tokens,
                ..JobPrompt::default()
            },
            affinity: JobAffinity {
                keys: prompt.affinity,
                session: session.as_ref(),
                prefix_holders: None,
            },
            reply: ExpectedReply {
                slo: JobSlo {
                    spent: now.since(self.requests[request].arrival),
                    ..JobSlo::default()
                },
                ..ExpectedReply::default()
            },
            // No client gives up.
            wait_budget: Some(WaitBudget {
                limit: self.cell.wait,
                waited: Duration::ZERO,
                bytes: 0,
            }),
            tenant: tenant.as_ref().map(|(name, weight)| JobTenant {
                name,
                weight: *weight,
                program: prompt.turn.map(|turn| turn.session),
                most_queued: None,
                is_alone: true,
            }),
            random: self.random.decisions.next(),
            ..Job::default()
        };
        let router = match self.replicas.len() {
            1 => 0,
            routers => usize::try_from(self.random.routers.below(routers as u64)).unwrap_or(0),
        };
        match self.replicas[router].router.decide(now, &job) {
            Dispatch::Plan(plan) => {
                if let Some(worker) = self.send(now, (router, request), &plan, prompt) {
                    self.run_engine(now, worker);
                }
            }
            Dispatch::Queued(ticket) => {
                self.requests[request].queued = true;
                self.replicas[router].queue.requests.insert(ticket, request);
                self.release(now, router);
            }
            Dispatch::Refused(_) => self.refused(now, request),
        }
    }

    /// Returns the settings of a model that differ from the general ones.
    fn overrides_of(&self, own: &ModelRoutingEntry) -> Overrides {
        let general = self.cell.routing.section.medium_weights;
        Overrides {
            overlap_weight: own.overlap_weight,
            temperature: own.temperature,
            medium_weights: own.medium_weights.over(general),
            ..Overrides::default()
        }
    }

    /// A client of a closed loop sends the request again; recorded ones give up.
    fn refused(&mut self, now: Moment, request: usize) {
        if self.sessions.is_some() {
            self.events
                .put(now + RETRY, SimulationEvent::Retry(request));
        } else {
            self.open -= 1;
        }
    }

    /// A reply is complete: in a closed loop another request follows.
    fn finished(&mut self, now: Moment, request: usize) {
        match &mut self.sessions {
            None => self.open -= 1,
            Some(sessions) => {
                if let Some(arrival) = sessions.ended(now, request) {
                    self.expect(arrival);
                }
            }
        }
    }

    /// Sends a request to the plan's target; returns the engine, which may have to be started.
    fn send(
        &mut self,
        now: Moment,
        (router, request): (usize, usize),
        plan: &Plan,
        prompt: PlayedPrompt,
    ) -> Option<usize> {
        let traced = self.traced(request)?;
        let target = plan.decode.target;
        let fetch = plan.decision.fetch().and_then(|note| {
            self.engines
                .fetch(now, (note.source, target), &prompt.names)
        });
        let generation = NamedRequest {
            id: RequestId(request as u64),
            prompt_tokens: traced.prompt_tokens,
            blocks: prompt.names,
            output_tokens: traced.output_tokens,
            fetch,
            // The routers of a simulation start together.
            priority: plan.engine_priority.number(Duration::ZERO),
        };
        let taken = self
            .engines
            .worker(target)
            .filter(|worker| self.engines.submit(*worker, now, generation).is_ok());
        let Some(worker) = taken else {
            let released = self.replicas[router].router.failed(now, plan.reservation);
            self.refused(now, request);
            self.dispatch_released(now, router, released);
            return None;
        };
        let winner = plan.decision.winning();
        self.requests[request].placed = Some(Placement {
            at: now,
            worker,
            router,
            reservation: plan.reservation,
            predicted_ttft_ms: winner.and_then(|row| row.predicted_ttft_ms),
        });
        Some(worker)
    }

    fn run_engine(&mut self, now: Moment, worker: usize) {
        match self.engines.start_idle(worker, now) {
            Some(NextWake::Step(length)) => self
                .events
                .put(now + length, SimulationEvent::StepEnd(worker)),
            Some(NextWake::Wake(then)) => self.events.put(then, SimulationEvent::Wake(worker)),
            None => {}
        }
    }

    fn end_step(&mut self, now: Moment, worker: usize) {
        let outcome = self.engines.finish(worker);
        if let Some((delay, message)) =
            self.wire
                .send(worker, self.engines.target(worker), outcome.events)
        {
            self.events
                .put(now + delay, SimulationEvent::Message(message));
        }
        // All tokens are processed before the next step begins.
        let mut released: Vec<Vec<ReleasedRequest>> = Vec::new();
        released.resize_with(self.replicas.len(), Vec::new);
        for emitted in &outcome.emitted {
            if let Some((router, requests)) = self.token(now, emitted) {
                released[router].extend(requests);
            }
        }
        for (router, released) in released.into_iter().enumerate() {
            self.dispatch_released(now, router, released);
        }
        self.run_engine(now, worker);
    }

    /// Records one emitted token; returns the request's router, and what it released.
    fn token(
        &mut self,
        now: Moment,
        emitted: &EmittedToken,
    ) -> Option<(usize, Vec<ReleasedRequest>)> {
        // Request ids are positions in the list of requests.
        let index = usize::try_from(emitted.id.0).ok()?;
        let traced = self.traced(index)?;
        let outcome = self.requests.get_mut(index)?;
        let Placement {
            router: number,
            reservation,
            ..
        } = outcome.placed?;
        let router = &self.replicas[number].router;
        let mut released = Vec::new();
        if outcome.first_token.is_none() {
            outcome.first_token = Some(now);
            outcome.cached_tokens = emitted.cached_tokens;
            released = router.first_token(now, reservation);
        }
        if emitted.finish.is_some() {
            outcome.done = Some(now);
            router.record_reply_length(traced.output_tokens);
            router.record_work(
                now,
                reservation,
                ReportedWork {
                    prompt_tokens: traced.prompt_tokens,
                    cached_tokens: Some(outcome.cached_tokens),
                    output_tokens: traced.output_tokens,
                    shows_decode_steps: true,
                },
            );
            released.extend(router.done(now, reservation));
            self.finished(now, index);
        }
        Some((number, released))
    }

    /// Behaves as after a gap that cannot be replayed: all known blocks are dropped, and later
    /// events may refer to lost ones.
    fn forget(&self, worker: usize) {
        if let Some(candidate) = self.engines.candidates.get(worker) {
            for replica in &self.replicas {
                replica.index.clear(candidate.target);
                replica.index.mark_loss(candidate.target);
            }
        }
    }

    fn release(&mut self, now: Moment, router: usize) {
        let released = self.replicas[router].router.take_released(now);
        self.dispatch_released(now, router, released);
    }

    pub(super) fn dispatch_released(
        &mut self,
        now: Moment,
        router: usize,
        mut released: Vec<ReleasedRequest>,
    ) {
        loop {
            let mut engines: Vec<usize> = Vec::new();
            for released in released {
                let queue = &mut self.replicas[router].queue;
                let request = queue.requests.remove(&released.ticket);
                if let Some((request, prompt)) =
                    request.and_then(|request| Some((request, self.prompt(request)?)))
                {
                    engines.extend(self.send(now, (router, request), &released.plan, prompt));
                }
            }
            for engine in engines {
                self.run_engine(now, engine);
            }
            let replica = &mut self.replicas[router];
            let Some(then) = replica.router.next_release(now) else {
                return;
            };
            if then > now {
                if replica.queue.release_at != Some(then) {
                    replica.queue.release_at = Some(then);
                    self.events.put(then, SimulationEvent::Release(router));
                }
                return;
            }
            // One call releases a few requests; the loop releases all that may start now.
            released = replica.router.take_released(now);
        }
    }

    fn tick(&mut self, now: Moment) {
        for router in 0..self.replicas.len() {
            let released = self.replicas[router].router.tick(now);
            self.dispatch_released(now, router, released);
        }
        self.send_digests(now);
        self.events.put(now + TICK, SimulationEvent::Tick);
    }
}
