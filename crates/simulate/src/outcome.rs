//! The results of requests, and the figures computed from them.

use kv_blocks::Moment;
use routing::ReservationId;

use crate::{
    Cell, CellReport, LoadSyncReport, Milliseconds, RequestReport, Trace, TracePace, TraceRequest,
    WorkerReport,
    figures::{imbalance, mean, percentile, ratio, sorted},
    report::rounded,
};

/// The result of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestResult {
    pub(crate) arrival: Moment,
    /// Its engine.
    pub(crate) placed: Option<Placement>,
    pub(crate) queued: bool,
    pub(crate) cached_tokens: u32,
    pub(crate) first_token: Option<Moment>,
    pub(crate) done: Option<Moment>,
}

/// The engine of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) at: Moment,
    pub(crate) worker: usize,
    /// The router that chose it, and its reservation there.
    pub(crate) router: usize,
    pub(crate) reservation: ReservationId,
}

impl RequestResult {
    pub(crate) fn report(&self, request: &TraceRequest) -> RequestReport {
        RequestReport {
            tenant: request.tenant,
            arrival_s: self.arrival.since_start().as_secs_f64(),
            bound_s: (self.placed).map(|placed| placed.at.since_start().as_secs_f64()),
            worker: self.placed.map(|placed| placed.worker),
            queued: self.queued,
            computed_tokens: request.prompt_tokens - self.cached_tokens,
            ttft_ms: self.first_token.map(|then| then.ms_since(self.arrival)),
            e2e_ms: self.done.map(|then| then.ms_since(self.arrival)),
        }
    }
}

/// The results of a whole run.
#[derive(Debug)]
pub(crate) struct Outcomes<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) cell: &'a Cell,
    /// One result for each request of the trace.
    pub(crate) requests: &'a [RequestResult],
    /// Number of leading requests that only warm the caches.
    pub(crate) warm_up: usize,
    /// Prompt tokens that each engine computed after the warm-up.
    pub(crate) computed_tokens: &'a [u64],
    /// What the routers told each other.
    pub(crate) load_sync: Option<LoadSyncReport>,
    /// End of the run, for requests that did not finish.
    pub(crate) end: Moment,
}

impl Outcomes<'_> {
    pub(crate) fn report(&self) -> CellReport {
        let counted = &self.requests[self.warm_up..];
        let finished = counted
            .iter()
            .filter(|outcome| outcome.done.is_some())
            .count();
        let queued = counted.iter().filter(|outcome| outcome.queued).count();
        let (blocks, tokens) = self.hit_ratios();
        let computed: Vec<f64> = self
            .computed_tokens
            .iter()
            .map(|tokens| *tokens as f64)
            .collect();
        CellReport {
            policy: self.cell.routing.policy.as_str(),
            workers: self.cell.workers,
            routers: self.cell.replicas.routers,
            load_sync: self.load_sync,
            pace: TracePace {
                speedup: rounded(self.cell.pace.speedup, 6),
                ..self.cell.pace
            },
            finished,
            unfinished: counted.len() - finished,
            block_hit_ratio: blocks,
            token_hit_ratio: tokens,
            ttft_ms: self.waits(counted, |outcome| outcome.first_token),
            itl_ms: self.gaps(),
            e2e_ms: self.waits(counted, |outcome| outcome.done).without_middle(),
            prefill_imbalance: rounded(imbalance(&computed), 6),
            held_ratio: rounded(ratio(queued as u64, counted.len() as u64), 6),
            per_worker: self.per_worker(counted),
        }
    }

    /// Returns the times from arrival. A request that is still waiting at the end counts with its
    /// age then.
    fn waits(
        &self,
        counted: &[RequestResult],
        until: impl Fn(&RequestResult) -> Option<Moment>,
    ) -> Milliseconds {
        let wait =
            |outcome: &RequestResult| until(outcome).unwrap_or(self.end).ms_since(outcome.arrival);
        Milliseconds::of(&sorted(counted.iter().map(wait).collect()))
    }

    /// Returns the mean gap between tokens, for each reply that is complete and longer than one
    /// token.
    fn gaps(&self) -> Milliseconds {
        let gap = |(outcome, output_tokens): (&RequestResult, u32)| {
            let gaps = output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
            Some(outcome.done?.ms_since(outcome.first_token?) / f64::from(gaps))
        };
        let lengths = self
            .trace
            .requests
            .iter()
            .map(|request| request.output_tokens);
        let counted = self.requests.iter().zip(lengths).skip(self.warm_up);
        Milliseconds::of(&sorted(counted.filter_map(gap).collect())).without_middle()
    }

    /// Returns the shares of blocks and of tokens that were found in a cache.
    fn hit_ratios(&self) -> (f64, f64) {
        let size = u64::from(self.trace.block_size.tokens());
        let (mut hits, mut blocks, mut tokens) = (0, 0, 0);
        for (outcome, request) in self
            .requests
            .iter()
            .zip(&self.trace.requests)
            .skip(self.warm_up)
        {
            hits += u64::from(outcome.cached_tokens);
            blocks += request.names.len() as u64;
            tokens += u64::from(request.prompt_tokens);
        }
        (
            rounded(ratio(hits / size, blocks), 6),
            rounded(ratio(hits, tokens), 6),
        )
    }

    fn per_worker(&self, counted: &[RequestResult]) -> Vec<WorkerReport> {
        let mut workers: Vec<_> = self
            .computed_tokens
            .iter()
            .map(|computed| WorkerReport {
                requests: 0,
                computed_tokens: *computed,
                hit_tokens: 0,
            })
            .collect();
        for outcome in counted {
            if let Some(Placement { worker, .. }) = outcome.placed {
                workers[worker].requests += 1;
                workers[worker].hit_tokens += u64::from(outcome.cached_tokens);
            }
        }
        workers
    }
}

impl Milliseconds {
    fn of(sorted: &[f64]) -> Self {
        let at = |share| Some(rounded(percentile(sorted, share), 3));
        Self {
            mean: rounded(mean(sorted), 3),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99).unwrap_or(0.0),
            max: at(1.0),
        }
    }

    /// Removes every figure but the mean and p99.
    fn without_middle(self) -> Self {
        Self {
            p50: None,
            p90: None,
            max: None,
            ..self
        }
    }
}
