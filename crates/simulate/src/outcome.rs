//! The results of requests, and the figures computed from them.

use kv_blocks::Moment;
use routing::ReservationId;

use crate::{
    Cell, CellReport, LoadSyncReport, Milliseconds, PredictionReport, RequestReport, SessionReport,
    SloReport, Trace, TracePace, TraceRequest, WorkerReport,
    figures::{imbalance, mean, percentile, ratio, sorted},
    report::rounded,
};

/// Factor within which a prediction is close to the actual time.
const CLOSE: f64 = 1.25;

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
    /// Time from here to its first token, as the router predicts it; `None` without a time model.
    pub(crate) predicted_ttft_ms: Option<f64>,
}

impl RequestResult {
    /// Creates the result of a request that has not arrived yet.
    pub(crate) fn pending(arrival: Moment) -> Self {
        Self {
            arrival,
            placed: None,
            queued: false,
            cached_tokens: 0,
            first_token: None,
            done: None,
        }
    }

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
    /// The requests that count, not those of the warm-up.
    pub(crate) counted: &'a [(RequestResult, &'a TraceRequest)],
    /// The figures of a closed loop.
    pub(crate) sessions: Option<SessionReport>,
    /// Prompt tokens that each engine computed after the warm-up.
    pub(crate) computed_tokens: &'a [u64],
    /// What the routers told each other.
    pub(crate) load_sync: Option<LoadSyncReport>,
    /// End of the run, for requests that did not finish.
    pub(crate) end: Moment,
}

impl Outcomes<'_> {
    pub(crate) fn report(&self) -> CellReport {
        let results = || self.counted.iter().map(|(result, _)| result);
        let finished = results().filter(|result| result.done.is_some()).count();
        let queued = results().filter(|result| result.queued).count();
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
            sessions: self.sessions,
            slo: self.slo(),
            finished,
            unfinished: self.counted.len() - finished,
            block_hit_ratio: blocks,
            token_hit_ratio: tokens,
            ttft_ms: self.waits(|outcome| outcome.first_token),
            itl_ms: self.gaps(),
            e2e_ms: self.waits(|outcome| outcome.done).without_middle(),
            prefill_imbalance: rounded(imbalance(&computed), 6),
            held_ratio: rounded(ratio(queued as u64, self.counted.len() as u64), 6),
            per_worker: self.per_worker(),
        }
    }

    /// Returns the times from arrival. A request that is still waiting at the end counts with its
    /// age then.
    fn waits(&self, until: impl Fn(&RequestResult) -> Option<Moment>) -> Milliseconds {
        let wait = |(outcome, _): &(RequestResult, &TraceRequest)| {
            until(outcome).unwrap_or(self.end).ms_since(outcome.arrival)
        };
        Milliseconds::of(&sorted(self.counted.iter().map(wait).collect()))
    }

    /// Returns the figures of the target for the time to first token, if there is one. A request
    /// without a first token misses it.
    fn slo(&self) -> Option<SloReport> {
        let target = self.cell.routing.section.slo.ttft?;
        let is_met = |(outcome, _): &&(RequestResult, &TraceRequest)| {
            let first = outcome.first_token;
            first.is_some_and(|first| first.since(outcome.arrival) <= target)
        };
        let met = self.counted.iter().filter(is_met).count();
        Some(SloReport {
            ttft_ms: rounded(target.as_secs_f64() * 1e3, 3),
            met_share: rounded(ratio(met as u64, self.counted.len() as u64), 6),
            predictions: self.predictions(),
        })
    }

    /// Returns how the predicted times to first token compare with the actual ones; `None`: the policy
    /// predicts none.
    fn predictions(&self) -> Option<PredictionReport> {
        let compared = self.counted.iter().filter_map(|(outcome, _)| {
            let placed = outcome.placed?;
            let actual_ms = outcome.first_token?.ms_since(placed.at);
            Some(placed.predicted_ttft_ms? / actual_ms)
        });
        let ratios = sorted(compared.filter(|ratio| ratio.is_finite()).collect());
        let is_close = |ratio: &&f64| (1.0 / CLOSE..=CLOSE).contains(*ratio);
        let close = ratios.iter().filter(is_close).count();
        let at = |share| rounded(percentile(&ratios, share), 4);
        (!ratios.is_empty()).then(|| PredictionReport {
            requests: ratios.len(),
            p05: at(0.05),
            p50: at(0.5),
            p95: at(0.95),
            close_share: rounded(ratio(close as u64, ratios.len() as u64), 6),
        })
    }

    /// Returns the mean gap between tokens, for each reply that is complete and longer than one
    /// token.
    fn gaps(&self) -> Milliseconds {
        let gap = |(outcome, request): &(RequestResult, &TraceRequest)| {
            let gaps = request
                .output_tokens
                .checked_sub(1)
                .filter(|gaps| *gaps > 0)?;
            Some(outcome.done?.ms_since(outcome.first_token?) / f64::from(gaps))
        };
        Milliseconds::of(&sorted(self.counted.iter().filter_map(gap).collect())).without_middle()
    }

    /// Returns the shares of blocks and of tokens that were found in a cache.
    fn hit_ratios(&self) -> (f64, f64) {
        let size = u64::from(self.trace.block_size.tokens());
        let (mut hits, mut blocks, mut tokens) = (0, 0, 0);
        for (outcome, request) in self.counted {
            hits += u64::from(outcome.cached_tokens);
            blocks += request.names.len() as u64;
            tokens += u64::from(request.prompt_tokens);
        }
        (
            rounded(ratio(hits / size, blocks), 6),
            rounded(ratio(hits, tokens), 6),
        )
    }

    fn per_worker(&self) -> Vec<WorkerReport> {
        let mut workers: Vec<_> = self
            .computed_tokens
            .iter()
            .map(|computed| WorkerReport {
                requests: 0,
                computed_tokens: *computed,
                hit_tokens: 0,
            })
            .collect();
        for (outcome, _) in self.counted {
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
