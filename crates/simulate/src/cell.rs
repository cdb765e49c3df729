//! One experiment: fleet, policy and pace.

use std::{collections::BTreeMap, time::Duration};

use engine_model::{Allocation, FetchLink, Profile};
use routing::{CacheSource, FetchMode, RoutingSection, RoutingSettings};
use serde::Serialize;

use crate::{SessionPlan, Trace, speedup_for};

/// One experiment.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The router's settings; their policy is the one under test.
    pub routing: RoutingSettings,
    /// Number of engines.
    pub workers: u32,
    /// Speed of the trace.
    pub pace: TracePace,
    /// Profile of every engine.
    pub profile: Profile,
    /// The engines' assignment of blocks to sequences: published simulations use
    /// [`Allocation::Reserved`], vLLM uses [`Allocation::Growing`].
    pub allocation: Allocation,
    /// Whether the router follows the engines' events, or knows only its own decisions.
    pub cache: CacheSource,
    /// Time from a change of a cache to the router's knowledge of it.
    pub event_delay: Duration,
    /// Share of the engines' messages that never arrive, 0 to 1.
    pub event_loss: f64,
    /// Longest wait of a request in the queue, if the settings enable queueing.
    pub wait: Duration,
    /// Whether engines schedule their waiting requests in the router's order instead of the order
    /// of arrival.
    pub engine_priority: bool,
    /// Whether the router sees the sessions of requests, where the trace names them.
    pub sessions: bool,
    /// Weights of the tenants by their number, where the router sees the tenants that the trace names;
    /// others have the weight 1. `None`: it sees none.
    pub tenants: Option<BTreeMap<u64, f64>>,
    /// The routers in front of the engines.
    pub replicas: ReplicaPlan,
    /// The connection over which engines read blocks from each other; `None`: they do not.
    pub fetch: Option<FetchLink>,
    /// Faults of the fleet.
    pub faults: FaultPlan,
    /// Seed for tie-breaks, lost messages and the routers of requests.
    pub seed: u64,
}

impl Cell {
    /// Creates an experiment with default conditions: events take 20 ms, and no request waits
    /// longer than 30 s.
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
            tenants: None,
            replicas: ReplicaPlan::default(),
            fetch: None,
            faults: FaultPlan::default(),
            seed: 1,
        }
    }

    /// Lets engines read blocks from each other over such connections, and the router name sources;
    /// `None`: it changes nothing.
    #[must_use]
    pub fn with_fetch(self, link: Option<FetchLink>) -> Self {
        if link.is_none() {
            return self;
        }
        Self {
            routing: RoutingSettings {
                section: RoutingSection {
                    fetch: FetchMode::VllmP2p,
                    ..self.routing.section
                },
                ..self.routing
            },
            fetch: link,
            ..self
        }
    }
}

/// The routers in front of a fleet; each request goes to one that is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaPlan {
    /// Number of routers, each with its own index of the engines' events.
    pub routers: u32,
    /// Whether they tell each other their load.
    pub load_sync: bool,
    /// Time from the sending of a message about load to its arrival.
    pub exchange_delay: Duration,
    /// Share of these messages that never arrive, 0 to 1.
    pub exchange_loss: f64,
}

impl Default for ReplicaPlan {
    /// Returns the plan of one router.
    fn default() -> Self {
        Self {
            routers: 1,
            load_sync: false,
            exchange_delay: Duration::from_millis(3),
            exchange_loss: 0.0,
        }
    }
}

/// Faults in a fleet. Entries for engines that do not exist are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Engines that are slower than their profile. The router counts their load as if they were
    /// not.
    pub slow: Vec<SlowEngine>,
    /// Engines whose blocks the router forgets, though the engines still hold them.
    pub forgotten: Vec<LostView>,
}

/// An engine that is slower in every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowEngine {
    /// The engine, from 0.
    pub worker: u32,
    /// Factor on its times; above 0, and below 1 it is faster.
    pub times: f64,
}

/// A loss of the router's view of an engine's cache, which the router notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostView {
    /// The engine, from 0.
    pub worker: u32,
    /// Time of the loss, in virtual time.
    pub at: Duration,
}

/// Playback of a trace: its recorded arrivals at a speed, or its sessions in a closed loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TracePace {
    /// The load index that the speed was chosen for, if any.
    pub load: Option<f64>,
    /// Factor over the recorded speed; above 0.
    pub speedup: f64,
    /// The closed loop, in which the speed does not count; `None`: the recorded arrivals.
    #[serde(skip)]
    pub sessions: Option<SessionPlan>,
}

impl TracePace {
    /// Chooses the speed at which `workers` engines of this profile have this load index.
    pub fn for_load(trace: &Trace, profile: &Profile, workers: u32, load: f64) -> Self {
        Self {
            load: Some(load),
            speedup: speedup_for(trace, profile, workers, load),
            sessions: None,
        }
    }

    /// Plays the trace faster by this factor.
    pub fn faster(speedup: f64) -> Self {
        Self {
            load: None,
            speedup,
            sessions: None,
        }
    }

    /// Plays the trace's sessions in a closed loop.
    pub fn closed_loop(plan: SessionPlan) -> Self {
        Self {
            sessions: Some(plan),
            ..Self::faster(1.0)
        }
    }
}
