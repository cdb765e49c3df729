//! The simulation in virtual time: arrivals, steps, messages.

use std::{collections::HashMap, sync::Arc, time::Duration};

use engine_model::{EmittedToken, NamedRequest, RequestId};
use kv_blocks::Moment;
use kv_index::{IndexSettings, KvIndex};
use routing::{
    Dispatch, Job, NoStopwatch, Overrides, Plan, ReleasedRequest, ReplyMode, Router, Ticket,
    WaitBudget,
};

use crate::{
    Cell, CellReport, RequestReport, Trace,
    engines::{Engines, NextWake, namespace},
    event_queue::EventQueue,
    outcome::{Outcomes, RequestResult},
    random::SplitMix64,
    wire::{StepAnnouncement, Wire},
};

/// Divisor for the warm-up: the first one in so many requests only warms the caches and is not
/// counted.
const WARM_UP: usize = 10;

/// Longest wait for complete replies after the last arrival.
const PATIENCE: Duration = Duration::from_secs(900);

/// Interval of the router's ticks, as in `warmroute serve`.
const TICK: Duration = Duration::from_secs(1);

/// Separates the random numbers of decisions from those of lost messages.
const PURPOSE: u64 = 1;

/// Plays `trace` in one cell.
pub fn run(trace: &Trace, cell: &Cell) -> CellReport {
    run_in_detail(trace, cell).0
}

/// Like [`run`], and returns the result of each request too, in the order of arrival.
pub fn run_in_detail(trace: &Trace, cell: &Cell) -> (CellReport, Vec<RequestReport>) {
    let mut run = Simulation::new(trace, cell);
    run.play();
    (
        run.report(),
        run.requests
            .iter()
            .zip(&trace.requests)
            .map(|(outcome, asked)| outcome.report(asked))
            .collect(),
    )
}

/// An event at a moment.
#[derive(Debug)]
enum SimulationEvent {
    Arrival(usize),
    StepEnd(usize),
    /// An engine must be woken.
    Wake(usize),
    Message(StepAnnouncement),
    /// The router loses its view of an engine's cache.
    Forget(usize),
    /// Queued requests may be released.
    Release,
    Tick,
}

struct Simulation<'a> {
    trace: &'a Trace,
    cell: &'a Cell,
    router: Router,
    index: Arc<KvIndex>,
    engines: Engines,
    wire: Wire,
    agenda: EventQueue<SimulationEvent>,
    random: SplitMix64,
    requests: Vec<RequestResult>,
    /// Requests in the router's queue.
    queued: HashMap<Ticket, usize>,
    /// Time of the next scheduled release.
    release_at: Option<Moment>,
    /// Number of unfinished requests.
    open: usize,
    /// Prompt tokens that each engine had computed at the end of the warm-up.
    computed_before: Vec<u64>,
    end: Moment,
}

impl<'a> Simulation<'a> {
    fn new(trace: &'a Trace, cell: &'a Cell) -> Self {
        let namespace = namespace(trace.block_size);
        let engines = Engines::new(cell, &namespace);
        let index = Arc::new(KvIndex::new(IndexSettings::default()));
        for candidate in &engines.candidates {
            index.register(candidate.target, Arc::clone(&namespace.model));
        }
        let requests: Vec<_> = trace
            .requests
            .iter()
            .map(|request| unheard_of(request.arrival_s, cell))
            .collect();
        Self {
            router: Router::new(cell.routing.clone(), Arc::clone(&index)),
            wire: Wire::new(Arc::clone(&index), namespace, cell),
            index,
            agenda: EventQueue::default(),
            random: SplitMix64::new(cell.seed, PURPOSE),
            queued: HashMap::new(),
            release_at: None,
            open: requests.len(),
            computed_before: vec![0; engines.candidates.len()],
            end: requests.last().map_or(Moment::START, |last| last.arrival) + PATIENCE,
            engines,
            requests,
            trace,
            cell,
        }
    }

    fn play(&mut self) {
        self.expect_arrival(0);
        self.agenda.put(Moment::START + TICK, SimulationEvent::Tick);
        for forgotten in &self.cell.mishaps.forgotten {
            self.agenda.put(
                Moment::at(forgotten.at),
                SimulationEvent::Forget(forgotten.worker as usize),
            );
        }
        while self.open > 0
            && let Some((now, what)) = self.agenda.next()
            && now <= self.end
        {
            match what {
                SimulationEvent::Arrival(request) => self.arrive(now, request),
                SimulationEvent::StepEnd(worker) => self.end_step(now, worker),
                SimulationEvent::Wake(worker) => self.rouse(now, worker),
                SimulationEvent::Message(message) => self.wire.deliver(&message),
                SimulationEvent::Forget(worker) => self.forget(worker),
                SimulationEvent::Release => self.release(now),
                SimulationEvent::Tick => self.tick(now),
            }
        }
    }

    fn expect_arrival(&mut self, request: usize) {
        if let Some(outcome) = self.requests.get(request) {
            self.agenda
                .put(outcome.arrival, SimulationEvent::Arrival(request));
        }
    }

    fn arrive(&mut self, now: Moment, request: usize) {
        self.expect_arrival(request + 1);
        if request == self.warm_up() {
            self.computed_before = self.engines.computed_tokens();
        }
        let asked = &self.trace.requests[request];
        let session = asked.session().filter(|_| self.cell.sessions).map(Arc::new);
        let job = Job {
            policy: None,
            pin: None,
            blocks: Some(&asked.blocks),
            prompt_tokens: asked.prompt_tokens,
            expected_output_tokens: None,
            answer: ReplyMode::Streamed,
            // No client gives up.
            wait_budget: Some(WaitBudget {
                limit: self.cell.wait,
                waited: Duration::ZERO,
                bytes: 0,
            }),
            busy_threshold: None,
            candidates: &self.engines.candidates,
            excluded: &[],
            prefill: None,
            random: self.random.next(),
            overrides: Overrides::default(),
            affinity: asked.affinity(),
            session: session.as_ref(),
            prefix_holders: None,
            stopwatch: &NoStopwatch,
        };
        match self.router.decide(now, &job) {
            Dispatch::Plan(plan) => {
                if let Some(worker) = self.send(now, request, &plan) {
                    self.rouse(now, worker);
                }
            }
            Dispatch::Held(ticket) => {
                self.requests[request].held = true;
                self.queued.insert(ticket, request);
                self.release(now);
            }
            Dispatch::Refused(_) => self.open -= 1,
        }
    }

    /// Sends a request to the plan's target; returns the engine, which may have to be started.
    fn send(&mut self, now: Moment, request: usize, plan: &Plan) -> Option<usize> {
        let asked = &self.trace.requests[request];
        let generation = NamedRequest {
            id: RequestId(request as u64),
            prompt_tokens: asked.prompt_tokens,
            blocks: Arc::clone(&asked.names),
            output_tokens: asked.output_tokens,
            priority: plan.engine_priority,
        };
        let taken = self
            .engines
            .worker(plan.decode.target)
            .filter(|worker| self.engines.submit(*worker, now, generation).is_ok());
        let Some(worker) = taken else {
            let released = self.router.failed(now, plan.reservation);
            self.open -= 1;
            self.let_go(now, released);
            return None;
        };
        self.requests[request].placed = Some((worker, plan.reservation));
        Some(worker)
    }

    fn rouse(&mut self, now: Moment, worker: usize) {
        match self.engines.start_idle(worker, now) {
            Some(NextWake::Step(length)) => self
                .agenda
                .put(now + length, SimulationEvent::StepEnd(worker)),
            Some(NextWake::Wake(then)) => self.agenda.put(then, SimulationEvent::Wake(worker)),
            None => {}
        }
    }

    fn end_step(&mut self, now: Moment, worker: usize) {
        let outcome = self.engines.finish(worker);
        if let Some((delay, message)) =
            self.wire
                .send(worker, self.engines.target(worker), outcome.events)
        {
            self.agenda
                .put(now + delay, SimulationEvent::Message(message));
        }
        // All tokens are processed before the next step begins.
        let released = outcome
            .emitted
            .iter()
            .flat_map(|emitted| self.token(now, emitted))
            .collect();
        self.let_go(now, released);
        self.rouse(now, worker);
    }

    /// Records one emitted token.
    fn token(&mut self, now: Moment, emitted: &EmittedToken) -> Vec<ReleasedRequest> {
        // Request ids are positions in the trace.
        let Some((outcome, asked)) = usize::try_from(emitted.id.0).ok().and_then(|place| {
            self.requests
                .get_mut(place)
                .zip(self.trace.requests.get(place))
        }) else {
            return Vec::new();
        };
        let Some((_, reservation)) = outcome.placed else {
            return Vec::new();
        };
        let mut released = Vec::new();
        if outcome.first_token.is_none() {
            outcome.first_token = Some(now);
            outcome.cached_tokens = emitted.cached_tokens;
            released = self.router.first_token(now, reservation);
        }
        if emitted.finish.is_some() {
            outcome.done = Some(now);
            self.router.record_reply_length(asked.output_tokens);
            released.extend(self.router.done(now, reservation));
            self.open -= 1;
        }
        released
    }

    /// Behaves as after a gap that cannot be replayed: all known blocks are dropped, and later
    /// events may refer to lost ones.
    fn forget(&self, worker: usize) {
        if let Some(candidate) = self.engines.candidates.get(worker) {
            self.index.clear(candidate.target);
            self.index.mark_loss(candidate.target);
        }
    }

    fn release(&mut self, now: Moment) {
        let released = self.router.take_released(now);
        self.let_go(now, released);
    }

    fn let_go(&mut self, now: Moment, mut released: Vec<ReleasedRequest>) {
        loop {
            let mut engines: Vec<usize> = Vec::new();
            for released in released {
                if let Some(request) = self.queued.remove(&released.ticket) {
                    engines.extend(self.send(now, request, &released.plan));
                }
            }
            for engine in engines {
                self.rouse(now, engine);
            }
            let Some(then) = self.router.next_release(now) else {
                return;
            };
            if then > now {
                if self.release_at != Some(then) {
                    self.release_at = Some(then);
                    self.agenda.put(then, SimulationEvent::Release);
                }
                return;
            }
            // One call releases a few requests; the loop releases all that may start now.
            released = self.router.take_released(now);
        }
    }

    fn tick(&mut self, now: Moment) {
        let released = self.router.tick(now);
        self.let_go(now, released);
        self.agenda.put(now + TICK, SimulationEvent::Tick);
    }

    fn warm_up(&self) -> usize {
        self.requests.len() / WARM_UP
    }

    fn report(&self) -> CellReport {
        let after = self.engines.computed_tokens();
        let computed: Vec<u64> = after
            .iter()
            .zip(&self.computed_before)
            .map(|(after, before)| after - before)
            .collect();
        Outcomes {
            trace: self.trace,
            cell: self.cell,
            requests: &self.requests,
            warm_up: self.warm_up(),
            computed_tokens: &computed,
            end: self.end,
        }
        .report()
    }
}

/// Returns the initial result of a request that has not arrived yet.
fn unheard_of(arrival_s: f64, cell: &Cell) -> RequestResult {
    // An invalid pace plays everything at once.
    let arrival = Duration::try_from_secs_f64(arrival_s / cell.pace.speedup).unwrap_or_default();
    RequestResult {
        arrival: Moment::at(arrival),
        placed: None,
        held: false,
        cached_tokens: 0,
        first_token: None,
        done: None,
    }
}
