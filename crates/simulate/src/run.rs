//! The simulation in virtual time.

mod events;

use std::{collections::HashMap, sync::Arc, time::Duration};

use kv_blocks::Moment;
use kv_index::{IndexSettings, KvIndex};
use routing::{Router, Ticket};

use self::events::SimulationEvent;
use crate::{
    Cell, CellReport, RequestReport, Trace,
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
            .map(|(outcome, request)| outcome.report(request))
            .collect(),
    )
}

struct Simulation<'a> {
    trace: &'a Trace,
    cell: &'a Cell,
    router: Router,
    index: Arc<KvIndex>,
    engines: Engines,
    wire: Wire,
    events: EventQueue<SimulationEvent>,
    random: SplitMix64,
    requests: Vec<RequestResult>,
    queue: RouterQueue,
    /// Number of unfinished requests.
    open: usize,
    /// Prompt tokens that each engine had computed at the end of the warm-up.
    computed_before: Vec<u64>,
    end: Moment,
}

/// Requests in the router's queue.
#[derive(Default)]
struct RouterQueue {
    /// Each with its position in the trace.
    requests: HashMap<Ticket, usize>,
    /// Time of the next scheduled release.
    release_at: Option<Moment>,
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
            .map(|request| pending_result(request.arrival_s, cell))
            .collect();
        Self {
            router: Router::new(cell.routing.clone(), Arc::clone(&index)),
            wire: Wire::new(Arc::clone(&index), namespace, cell),
            index,
            events: EventQueue::default(),
            random: SplitMix64::new(cell.seed, PURPOSE),
            queue: RouterQueue::default(),
            open: requests.len(),
            computed_before: vec![0; engines.candidates.len()],
            end: requests.last().map_or(Moment::START, |last| last.arrival) + PATIENCE,
            engines,
            requests,
            trace,
            cell,
        }
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
