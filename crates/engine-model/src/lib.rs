//! A paged inference engine in virtual time: block pool, iteration scheduler, timing.
//!
//! It computes *when* tokens come, *which* blocks are cached and *which* events an engine would
//! publish about them, as vLLM does. It computes no model, opens no socket and reads no clock:
//! `engine-sim` drives it in real time, the simulator in virtual time.
//!
//! **Invariant**: events match the content of the pool: applying them in order to an empty multiset
//! gives the pool's cached blocks, copies included.

mod engine;
mod event;
mod fetch_link;
mod host_tier;
mod plan;
mod pool;
mod profile;
mod reply;
mod request;
mod sequence;
mod settings;
mod stats;

pub use engine::{Engine, NextAction, StepOutcome};
pub use event::{BlockMedia, CacheEvent};
pub use fetch_link::FetchLink;
pub use profile::{EngineTiming, Profile, UnknownProfile};
pub use reply::ReplyStream;
pub use request::{
    EmittedToken, FetchedPrefix, Finish, GenerationRequest, NamedRequest, RequestId, SubmitError,
};
pub use settings::{Allocation, EngineSettings, Scheduling};
pub use stats::{BlockStats, EngineStats};
