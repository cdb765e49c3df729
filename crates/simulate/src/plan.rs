//! Several experiments on one workload.

use std::time::Duration;

use routing::{Policy, RoutingSettings};

use crate::{Cell, ReplicaPlan, SessionPlan, Trace, TracePace, sessions_for};

/// Ranges of the conditions that a user may choose.
pub mod ranges {
    /// Largest load index: far beyond what any fleet keeps up with.
    pub const MOST_LOAD: f64 = 100.0;
    /// Largest speed-up.
    pub const MOST_SPEEDUP: f64 = 1e6;
    /// Largest speed factor between an engine and the others.
    pub const MOST_SLOWER: f64 = 1e3;
    /// Fastest connection between engines, in 10^9 bytes per second.
    pub const MOST_GB_PER_S: f64 = 1e4;
    /// Longest delay of an event, in ms.
    pub const LONGEST_DELAY_MS: u64 = 600_000;
    /// Most simulated engines.
    pub const MOST_WORKERS: u32 = 1024;
    /// Most simulated routers.
    pub const MOST_ROUTERS: u32 = 64;
    /// Most sessions at a time.
    pub const MOST_SESSIONS: u32 = 100_000;
    /// Largest multiple of the tokens in the caches that sessions may need.
    pub const MOST_CAPACITY: f64 = 100.0;
    /// Longest time to a first token that may be a goal, in ms: an hour.
    pub const LONGEST_TTFT_MS: u64 = 3_600_000;
    /// Longest warm-up, measurement or mean pause of a closed loop, in seconds: a day.
    pub const LONGEST_LOOP_S: u64 = 86_400;
    /// Longest virtual time, in seconds: a year.
    pub const LATEST_S: f64 = 366.0 * 86_400.0;
}

/// Experiments that differ in the number of engines, the load, the number of routers and the policy.
#[derive(Clone, Debug)]
pub struct ExperimentPlan {
    /// Numbers of engines.
    pub workers: Vec<u32>,
    /// Speeds of the trace.
    pub pace: PlannedPace,
    /// Numbers of routers.
    pub routers: Vec<u32>,
    /// Policies.
    pub policies: Vec<Policy>,
    /// The conditions that all experiments have in common.
    pub common: Cell,
}

/// Speeds of a trace, or numbers of its sessions in a closed loop, for each number of engines.
#[derive(Clone, Debug, PartialEq)]
pub enum PlannedPace {
    /// One for each load index.
    Loads(Vec<f64>),
    /// One, whatever load it is.
    Speedup(f64),
    /// Closed loops with these numbers of sessions, each otherwise as planned.
    Sessions(SessionNumbers, SessionPlan),
}

/// Numbers of sessions that run at the same time.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionNumbers {
    /// These.
    Each(Vec<u32>),
    /// As many as need so many times the tokens that the caches hold.
    CapacityRatios(Vec<f64>),
    /// The most at which first tokens come within this time.
    MostWithin(Duration),
}

impl PlannedPace {
    /// The load of a busy fleet.
    pub const USUAL_LOAD: f64 = 0.55;

    /// Returns how many speeds, or numbers of sessions, there are for one number of engines.
    pub fn count(&self) -> usize {
        match self {
            Self::Loads(loads) => loads.len(),
            Self::Sessions(SessionNumbers::Each(numbers), _) => numbers.len(),
            Self::Sessions(SessionNumbers::CapacityRatios(ratios), _) => ratios.len(),
            Self::Speedup(_) | Self::Sessions(SessionNumbers::MostWithin(_), _) => 1,
        }
    }

    /// Returns whether the trace's sessions are played in a closed loop.
    pub fn is_closed_loop(&self) -> bool {
        matches!(self, Self::Sessions(..))
    }

    fn paces(&self, trace: &Trace, plan: &ExperimentPlan, workers: u32) -> Vec<TracePace> {
        let profile = &plan.common.profile;
        match self {
            Self::Speedup(times) => vec![TracePace::faster(*times)],
            Self::Loads(loads) => loads
                .iter()
                .map(|load| TracePace::for_load(trace, profile, workers, *load))
                .collect(),
            Self::Sessions(numbers, plan) => {
                let with = |concurrent| {
                    TracePace::closed_loop(SessionPlan {
                        concurrent,
                        ..*plan
                    })
                };
                match numbers {
                    SessionNumbers::Each(numbers) => numbers.iter().copied().map(with).collect(),
                    SessionNumbers::CapacityRatios(ratios) => ratios
                        .iter()
                        .map(|ratio| with(sessions_for(trace, profile, workers, *ratio)))
                        .collect(),
                    SessionNumbers::MostWithin(goal) => vec![TracePace::closed_loop(SessionPlan {
                        concurrent: ranges::MOST_SESSIONS,
                        ttft_goal: Some(*goal),
                        ..*plan
                    })],
                }
            }
        }
    }
}

impl ExperimentPlan {
    /// Returns every combination of engines, load, routers and policy, in this order.
    pub fn cells(&self, trace: &Trace) -> Vec<Cell> {
        let mut cells = Vec::new();
        for workers in &self.workers {
            for pace in self.pace.paces(trace, self, *workers) {
                for routers in &self.routers {
                    for policy in &self.policies {
                        cells.push(Cell {
                            routing: RoutingSettings {
                                policy: *policy,
                                ..self.common.routing.clone()
                            },
                            workers: *workers,
                            pace,
                            replicas: ReplicaPlan {
                                routers: *routers,
                                ..self.common.replicas
                            },
                            ..self.common.clone()
                        });
                    }
                }
            }
        }
        cells
    }
}
