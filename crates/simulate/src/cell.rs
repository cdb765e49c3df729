//! One experiment: which fleet, which policy, how fast.

use std::time::Duration;

use engine_model::Profile;
use routing::RoutingSettings;

use crate::{Trace, speedup_for};

/// One experiment.
#[derive(Clone, Debug)]
pub struct Cell {
    /// How the router is configured; its policy is the one under test.
    pub routing: RoutingSettings,
    /// Engines.
    pub workers: u32,
    /// How fast the trace is played.
    pub pace: Pace,
    /// What each engine is.
    pub profile: Profile,
    /// Time from a change of a cache to the router's knowledge of it.
    pub event_delay: Duration,
    /// Share of the engines' messages that never arrive, 0 to 1.
    pub event_loss: f64,
    /// Another seed settles ties and loses messages differently.
    pub seed: u64,
}

/// How fast a trace is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The load index it was chosen for, if it was.
    pub load: Option<f64>,
    /// How many times faster than recorded; above 0.
    pub speedup: f64,
}

impl Pace {
    /// So that `workers` engines of this profile have this load index.
    pub fn for_load(trace: &Trace, profile: &Profile, workers: u32, load: f64) -> Self {
        Self { load: Some(load), speedup: speedup_for(trace, profile, workers, load) }
    }

    /// So many times faster than recorded.
    pub fn faster(speedup: f64) -> Self {
        Self { load: None, speedup }
    }
}
