//! The simulation in virtual time.

mod events;
mod exchange;
mod prompt;
mod replica;
mod session_figures;
mod session_loop;

use std::{sync::Arc, time::Duration};

use kv_blocks::Moment;
use routing::ModelRouting;

use self::{
    events::SimulationEvent, exchange::LoadExchange, prompt::PlayedPrompt, replica::Replica,
    session_loop::SessionLoop,
};
use crate::{
    Cell, CellReport, LoadSyncReport, RequestReport, Trace, TraceRequest,
    engines::{Engines, namespace},
    event_queue::EventQueue,
    outcome::{Outcomes, RequestResult},
    random::SplitMix64,
    wire::Wire,
};

/// Divisor for the warm-up: the first one in so many requests only warms the caches and is not
/// counted.
pub(crate) const WARM_UP: usize = 10;

/// Longest wait for complete replies after the last arrival.
pub(crate) const PATIENCE: Duration = Duration::from_secs(900);

/// Separates the random numbers of decisions, and those by which requests are dealt to routers, from
/// those of lost messages.
const PURPOSE: u64 = 1;
const DEALING: u64 = 3;

/// Plays `trace` in one cell.
pub fn run(trace: &Trace, cell: &Cell) -> CellReport {
    run_in_detail(trace, cell).0
}

/// Like [`run`], and returns the result of each request too, in the order of arrival; in a closed
/// loop in the order in which they were foreseen, some of them for a time after the end.
pub fn run_in_detail(trace: &Trace, cell: &Cell) -> (CellReport, Vec<RequestReport>) {
    let mut run = Simulation::new(trace, cell);
    run.play();
    (
        run.report(),
        run.results()
            .map(|(outcome, request)| outcome.report(request))
            .collect(),
    )
}

struct Simulation<'a> {
    trace: &'a Trace,
    cell: &'a Cell,
    /// The settings of single models.
    models: ModelRouting,
    replicas: Vec<Replica>,
    exchange: Option<LoadExchange>,
    engines: Engines,
    wire: Wire,
    events: EventQueue<SimulationEvent>,
    random: RandomStreams,
    requests: Vec<RequestResult>,
    /// The sessions of a closed loop; `None`: the requests come as they were recorded.
    sessions: Option<SessionLoop<'a>>,
    /// Number of unfinished requests, or of sessions in a closed loop.
    open: usize,
    /// Prompt tokens that each engine had computed at the end of the warm-up.
    computed_before: Vec<u64>,
    end: Moment,
}

/// Random numbers of the requests.
struct RandomStreams {
    /// Those of their decisions.
    decisions: SplitMix64,
    /// Those by which they are dealt to routers.
    routers: SplitMix64,
}

impl<'a> Simulation<'a> {
    fn new(trace: &'a Trace, cell: &'a Cell) -> Self {
        let namespace = namespace(trace.block_size);
        let engines = Engines::new(cell, &namespace);
        let plan = &cell.replicas;
        let replicas: Vec<Replica> = (0..plan.routers.max(1))
            .map(|_| Replica::new(cell, &engines.candidates))
            .collect();
        let indexes = replicas
            .iter()
            .map(|replica| Arc::clone(&replica.index))
            .collect();
        let sessions = cell
            .pace
            .sessions
            .map(|plan| SessionLoop::new(trace, plan, cell.seed));
        let recorded = trace.requests.iter().filter(|_| sessions.is_none());
        let requests: Vec<_> = recorded
            .map(|request| RequestResult::pending(arrival(request, cell)))
            .collect();
        let (open, end) = match cell.pace.sessions {
            Some(plan) => (
                plan.concurrent as usize,
                Moment::at(plan.warm_up + plan.measured),
            ),
            None => (
                requests.len(),
                requests.last().map_or(Moment::START, |last| last.arrival) + PATIENCE,
            ),
        };
        Self {
            wire: Wire::new(indexes, namespace, cell),
            exchange: (plan.load_sync && replicas.len() > 1)
                .then(|| LoadExchange::new(cell, &replicas)),
            replicas,
            events: EventQueue::default(),
            random: RandomStreams {
                decisions: SplitMix64::new(cell.seed, PURPOSE),
                routers: SplitMix64::new(cell.seed, DEALING),
            },
            open,
            computed_before: vec![0; engines.candidates.len()],
            models: ModelRouting::new(&cell.routing.section.models),
            end,
            engines,
            requests,
            sessions,
            trace,
            cell,
        }
    }

    /// Returns what the routers told each other, on average.
    fn load_sync_report(&self) -> Option<LoadSyncReport> {
        let ends = self.requests.iter().filter_map(|result| result.done);
        let seconds = ends.max()?.since_start().as_secs_f64().max(1.0);
        let router_seconds = seconds * self.replicas.len() as f64;
        self.exchange
            .as_ref()
            .map(|exchange| exchange.counts.report(self.requests.len(), router_seconds))
    }

    /// Returns the number of recorded requests that only warm the caches.
    fn warm_up(&self) -> usize {
        self.requests.len() / WARM_UP
    }

    /// Returns the row of the trace that a request is played from.
    fn traced(&self, request: usize) -> Option<&'a TraceRequest> {
        let row = match &self.sessions {
            Some(sessions) => sessions.row(request)?,
            None => request,
        };
        self.trace.requests.get(row)
    }

    /// Returns the content of a request.
    fn prompt(&self, request: usize) -> Option<PlayedPrompt> {
        match &self.sessions {
            Some(sessions) => sessions.prompt(request),
            None => self.traced(request).map(PlayedPrompt::recorded),
        }
    }

    /// Returns every request with its row of the trace.
    fn results(&self) -> impl Iterator<Item = (RequestResult, &'a TraceRequest)> {
        (self.requests.iter().copied().enumerate())
            .filter_map(move |(request, result)| Some((result, self.traced(request)?)))
    }

    /// Returns the requests that count.
    fn counted(&self) -> Vec<(RequestResult, &'a TraceRequest)> {
        match &self.sessions {
            None => self.results().skip(self.warm_up()).collect(),
            Some(sessions) => self
                .results()
                .filter(|(result, _)| sessions.counts(result))
                .collect(),
        }
    }

    fn report(&self) -> CellReport {
        let after = self.engines.computed_tokens();
        let computed: Vec<u64> = after
            .iter()
            .zip(&self.computed_before)
            .map(|(after, before)| after - before)
            .collect();
        let counted = self.counted();
        let sessions = self.sessions.as_ref();
        Outcomes {
            trace: self.trace,
            cell: self.cell,
            counted: &counted,
            sessions: sessions.map(|sessions| sessions.report(self.cell, &self.requests)),
            computed_tokens: &computed,
            load_sync: self.load_sync_report(),
            end: self.end,
        }
        .report()
    }
}

/// Returns the arrival of a recorded request. An invalid pace plays everything at once.
fn arrival(request: &TraceRequest, cell: &Cell) -> Moment {
    let seconds = request.arrival_s / cell.pace.speedup;
    Moment::at(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
