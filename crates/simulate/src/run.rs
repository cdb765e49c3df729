//! The simulation in virtual time.

mod events;
mod exchange;
mod replica;

use std::{sync::Arc, time::Duration};

use kv_blocks::Moment;

use self::{events::SimulationEvent, exchange::LoadExchange, replica::Replica};
use crate::{
    Cell, CellReport, LoadSyncReport, RequestReport, Trace,
    engines::{Engines, namespace},
    event_queue::EventQueue,
    outcome::{Outcomes, RequestResult},
    random::SplitMix64,
    wire::Wire,
};

/// Divisor for the warm-up: the first one in so many requests only warms the caches and is not
/// counted.
const WARM_UP: usize = 10;

/// Longest wait for complete replies after the last arrival.
const PATIENCE: Duration = Duration::from_secs(900);

/// Separates the random numbers of decisions, and those by which requests are dealt to routers, from
/// those of lost messages.
const PURPOSE: u64 = 1;
const DEALING: u64 = 3;

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
            .map(|(outcome, request)| outcome.report(request))
            .collect(),
    )
}

struct Simulation<'a> {
    trace: &'a Trace,
    cell: &'a Cell,
    replicas: Vec<Replica>,
    exchange: Option<LoadExchange>,
    engines: Engines,
    wire: Wire,
    events: EventQueue<SimulationEvent>,
    random: SplitMix64,
    dealing: SplitMix64,
    requests: Vec<RequestResult>,
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
        let plan = &cell.replicas;
        let replicas: Vec<Replica> = (0..plan.routers.max(1))
            .map(|_| Replica::new(cell, &engines.candidates))
            .collect();
        let indexes = replicas
            .iter()
            .map(|replica| Arc::clone(&replica.index))
            .collect();
        let requests: Vec<_> = trace
            .requests
            .iter()
            .map(|request| pending_result(request.arrival_s, cell))
            .collect();
        Self {
            wire: Wire::new(indexes, namespace, cell),
            exchange: (plan.load_sync && replicas.len() > 1)
                .then(|| LoadExchange::new(cell, &replicas)),
            replicas,
            events: EventQueue::default(),
            random: SplitMix64::new(cell.seed, PURPOSE),
            dealing: SplitMix64::new(cell.seed, DEALING),
            open: requests.len(),
            computed_before: vec![0; engines.candidates.len()],
            end: requests.last().map_or(Moment::START, |last| last.arrival) + PATIENCE,
            engines,
            requests,
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
            load_sync: self.load_sync_report(),
            end: self.end,
        }
        .report()
    }
}

/// Returns the initial result of a request that has not arrived yet.
fn pending_result(arrival_s: f64, cell: &Cell) -> RequestResult {
    // An invalid pace plays everything at once.
    let arrival = Duration::try_from_secs_f64(arrival_s / cell.pace.speedup).unwrap_or_default();
    RequestResult {
        arrival: Moment::at(arrival),
        placed: None,
        queued: false,
        cached_tokens: 0,
        first_token: None,
        done: None,
    }
}
