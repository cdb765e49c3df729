//! Several experiments on one workload.

use routing::{Policy, RoutingSettings};

use crate::{Cell, ReplicaPlan, Trace, TracePace};

/// Ranges of the conditions that a user may choose.
pub mod ranges {
    /// Largest load index: far beyond what any fleet keeps up with.
    pub const MOST_LOAD: f64 = 100.0;
    /// Largest speed-up.
    pub const MOST_SPEEDUP: f64 = 1e6;
    /// Largest speed factor between an engine and the others.
    pub const MOST_SLOWER: f64 = 1e3;
    /// Longest delay of an event, in ms.
    pub const LONGEST_DELAY_MS: u64 = 600_000;
    /// Most simulated engines.
    pub const MOST_WORKERS: u32 = 1024;
    /// Most simulated routers.
    pub const MOST_ROUTERS: u32 = 64;
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

/// Speeds of a trace, for each number of engines.
#[derive(Clone, Debug, PartialEq)]
pub enum PlannedPace {
    /// One for each load index.
    Loads(Vec<f64>),
    /// One, whatever load it is.
    Speedup(f64),
}

impl PlannedPace {
    /// The load of a busy fleet.
    pub const USUAL_LOAD: f64 = 0.55;

    fn paces(&self, trace: &Trace, plan: &ExperimentPlan, workers: u32) -> Vec<TracePace> {
        let profile = &plan.common.profile;
        match self {
            Self::Speedup(times) => vec![TracePace::faster(*times)],
            Self::Loads(loads) => loads
                .iter()
                .map(|load| TracePace::for_load(trace, profile, workers, *load))
                .collect(),
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
