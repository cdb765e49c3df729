//! The cells of the table.

use std::time::Duration;

use engine_model::Profile;
use serde::Serialize;

use super::{ComparedTrace, Contender, measure::PlannedRun};
use crate::{
    Cell, PlannedPace, SessionPlan, Trace, TracePace, load::reusable_tokens, ranges::MOST_SESSIONS,
    sessions_for,
};

/// The conditions of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparisonPlan {
    /// Profile of every engine.
    pub profile: Profile,
    /// Number of engines.
    pub workers: u32,
    /// Time to a first token that the service promises.
    pub ttft_slo: Duration,
    /// Requests of a trace that are played, from its first on.
    pub most_requests: usize,
    /// Loads at which recorded arrivals are played.
    pub loads: Vec<f64>,
    /// Multiples of the tokens in all caches that the sessions of a closed loop need.
    pub capacity_ratios: Vec<f64>,
    /// Whether each contender's most sessions within the SLO are searched for, too.
    pub finds_sessions: bool,
    /// Time of a closed loop that only warms the caches.
    pub warm_up: Duration,
    /// Time of a closed loop that is measured after it.
    pub measured: Duration,
    /// Seed of every run.
    pub seed: u64,
}

impl ComparisonPlan {
    /// Creates the plan of the published table, without the search: eight engines with these times, a
    /// busy fleet, and sessions that fit into the caches and that do not.
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            workers: 8,
            ttft_slo: Duration::from_secs(2),
            most_requests: 6_000,
            loads: vec![PlannedPace::USUAL_LOAD],
            capacity_ratios: vec![0.8, 1.5],
            finds_sessions: false,
            warm_up: Duration::from_secs(600),
            measured: Duration::from_secs(1_200),
            seed: 1,
        }
    }

    /// Returns a trace of the table without the requests that no engine can hold, and with recorded
    /// arrivals shortened: the virtual time bounds a closed loop. `None`: no request is left.
    pub fn prepare(&self, name: String, mut trace: Trace) -> Option<ComparedTrace> {
        trace.drop_what_exceeds(&self.profile);
        if !trace.names_sessions() {
            trace.requests.truncate(self.most_requests);
        }
        let reusable = reusable_tokens(&trace);
        (!reusable.is_empty()).then_some(ComparedTrace {
            name,
            trace,
            reusable,
        })
    }

    /// Returns the cells of a trace.
    pub(super) fn cells<'a>(&self, compared: &'a ComparedTrace) -> Vec<PlannedCell<'a>> {
        let planned = |pace: ComparedPace| PlannedCell {
            name: &compared.name,
            trace: &compared.trace,
            reusable: &compared.reusable,
            pace,
            trace_pace: self.trace_pace(&compared.trace, pace),
        };
        self.paces(&compared.trace)
            .into_iter()
            .map(planned)
            .collect()
    }

    fn paces(&self, trace: &Trace) -> Vec<ComparedPace> {
        if !trace.names_sessions() {
            return self.loads.iter().copied().map(ComparedPace::Load).collect();
        }
        let ratios = self.capacity_ratios.iter().copied();
        ratios
            .map(ComparedPace::CapacityRatio)
            .chain(self.finds_sessions.then_some(ComparedPace::MostSessions))
            .collect()
    }

    fn trace_pace(&self, trace: &Trace, pace: ComparedPace) -> TracePace {
        let closed_loop = |concurrent, ttft_goal| {
            TracePace::closed_loop(SessionPlan {
                warm_up: self.warm_up,
                measured: self.measured,
                ttft_goal,
                ..SessionPlan::new(concurrent)
            })
        };
        match pace {
            ComparedPace::Load(load) => {
                TracePace::for_load(trace, &self.profile, self.workers, load)
            }
            ComparedPace::CapacityRatio(ratio) => {
                let concurrent = sessions_for(trace, &self.profile, self.workers, ratio);
                closed_loop(concurrent, None)
            }
            ComparedPace::MostSessions => closed_loop(MOST_SESSIONS, Some(self.ttft_slo)),
        }
    }

    /// Returns the run of a contender in a cell.
    pub(super) fn run<'a>(&self, cell: &PlannedCell<'a>, contender: Contender) -> PlannedRun<'a> {
        let conditions = Cell {
            seed: self.seed,
            ..Cell::new(
                contender.routing(),
                self.workers,
                cell.trace_pace,
                self.profile,
            )
        };
        PlannedRun {
            contender,
            trace: cell.trace,
            reusable: cell.reusable,
            cell: conditions,
            ttft_slo: self.ttft_slo,
        }
    }
}

/// How a cell plays its trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedPace {
    /// By its recorded arrivals at this load index.
    Load(f64),
    /// In a closed loop whose sessions need so many times the tokens that all caches hold.
    CapacityRatio(f64),
    /// In a closed loop with the most sessions at which first tokens come within the SLO, which are
    /// searched for each contender.
    MostSessions,
}

impl ComparedPace {
    /// Returns whether the caches cannot hold all sessions.
    pub fn exceeds_caches(self) -> bool {
        matches!(self, Self::CapacityRatio(ratio) if ratio > 1.0)
    }
}

impl std::fmt::Display for ComparedPace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Load(load) => write!(f, "load {load}"),
            Self::CapacityRatio(ratio) => write!(f, "{ratio} x caches"),
            Self::MostSessions => f.write_str("most sessions"),
        }
    }
}

/// One cell, for all contenders.
#[derive(Debug)]
pub(super) struct PlannedCell<'a> {
    pub(super) name: &'a str,
    trace: &'a Trace,
    /// The tokens of each prompt that a cache without end would hold.
    reusable: &'a [u32],
    pub(super) pace: ComparedPace,
    trace_pace: TracePace,
}

impl PlannedCell<'_> {
    /// Returns the number of requests of the trace.
    pub(super) fn requests(&self) -> usize {
        self.trace.requests.len()
    }
}
