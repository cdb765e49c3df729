//! One experiment: which fleet, which policy, how fast.

use std::time::Duration;

use engine_model::{Allocation, Profile};
use routing::{CacheSource, RoutingSettings};

use crate::{Trace, speedup_for};

/// One experiment.
#[derive(Clone, Debug)]
pub struct Cell {
    /// How the router is configured; its policy is the one under test.
    pub routing: RoutingSettings,
    /// Engines.
    pub workers: u32,
    /// How fast the trace is played.
    pub pace: TracePace,
    /// What each engine is.
    pub profile: Profile,
    /// How engines give blocks to sequences: [`Allocation::Reserved`] is what published simulations do, and
    /// [`Allocation::Growing`] what vLLM does.
    pub allocation: Allocation,
    /// Whether the router follows what engines announce, or knows of its own decisions alone.
    pub cache: CacheSource,
    /// Time from a change of a cache to the router's knowledge of it.
    pub event_delay: Duration,
    /// Share of the engines' messages that never arrive, 0 to 1.
    pub event_loss: f64,
    /// How long a request may be held, where requests are held at all.
    pub wait: Duration,
    /// Whether engines take up what waits there in the router's order, not in that of arrival.
    pub engine_priority: bool,
    /// Whether the router can tell which requests grew out of which, where the trace names sessions.
    pub sessions: bool,
    /// What is not as it should be.
    pub mishaps: FaultPlan,
    /// Another seed settles ties and loses messages differently.
    pub seed: u64,
}

impl Cell {
    /// An experiment with nothing special about it: announcements take 20 ms, and nobody waits for longer than 30 s.
    pub fn new(routing: RoutingSettings, workers: u32, pace: TracePace, profile: Profile) -> Self {
        Self {
            routing,
            workers,
            pace,
            profile,
            allocation: Allocation::Reserved,
            cache: CacheSource::Events,
            event_delay: Duration::from_millis(20),
            event_loss: 0.0,
            wait: Duration::from_secs(30),
            engine_priority: false,
            sessions: false,
            mishaps: FaultPlan::default(),
            seed: 1,
        }
    }
}

/// What is not as it should be in a fleet. Engines that there are not are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Engines that are slower than their profile. Load is still counted as if they were not.
    pub slow: Vec<SlowEngine>,
    /// Engines whose blocks the router forgets, though they keep them.
    pub forgotten: Vec<LostView>,
}

/// An engine that takes longer for everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowEngine {
    /// Which engine, from 0.
    pub worker: u32,
    /// How many times as long; above 0, and below 1 it is faster.
    pub times: f64,
}

/// The router's view of an engine's cache is lost, and it knows that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostView {
    /// Which engine, from 0.
    pub worker: u32,
    /// When, in virtual time.
    pub at: Duration,
}

/// How fast a trace is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TracePace {
    /// The load index it was chosen for, if it was.
    pub load: Option<f64>,
    /// How many times faster than recorded; above 0.
    pub speedup: f64,
}

impl TracePace {
    /// So that `workers` engines of this profile have this load index.
    pub fn for_load(trace: &Trace, profile: &Profile, workers: u32, load: f64) -> Self {
        Self {
            load: Some(load),
            speedup: speedup_for(trace, profile, workers, load),
        }
    }

    /// So many times faster than recorded.
    pub fn faster(speedup: f64) -> Self {
        Self {
            load: None,
            speedup,
        }
    }
}
