//! Admission by the live set: a cold request waits until its blocks fit beside those that a worker
//! used lately.
//!
//! When the sessions of a fleet need more blocks than its caches hold, every turn displaces the
//! blocks of a session that returns seconds later, and each return computes a whole prompt again.
//! Here a request that would do so waits in the router: some sessions run from the cache, and the
//! others have their turn later. `docs/admission.md` has the rule, its constants and its limits.
//!
//! | module | purpose |
//! | --- | --- |
//! | `footprint` | the blocks of a request, in spans |
//! | `live_set` | the blocks that each target used lately |
//! | `tails` | the ends of prompts, by which one that returns is found |
//! | `keep_time` | how long blocks count as used lately, and whether prompts return at all |
//! | `capacity` | the size of a cache, reported or observed |
//! | `room` | whether a request fits |
//! | `budget` | the share of a target's time that lets in requests without room |
//! | `expected_wait` | how long a request will wait for room |
//! | `placement` | the test and the budget as part of a choice |
//! | `report` | who waits and why, for operators |
//!
//! The order among the waiting requests is the queue's (`queue::room_line`). Nothing here reads a
//! session's name: blocks and this router's own bookkeeping are all that is used.
//!
//! **Invariant**: a request whose tokens to compute are few never waits for room, and neither does
//! one for which a target's capacity is unknown.

mod budget;
mod capacity;
mod expected_wait;
mod footprint;
mod keep_time;
mod live_set;
mod placement;
mod report;
mod room;
mod tails;

pub(crate) use self::{
    budget::Lending,
    footprint::Footprint,
    live_set::{DispatchFacts, LiveSets},
    placement::{LentShare, RoomRule, whole_prefill_ms},
    room::RoomShortage,
};
pub use self::{
    report::{AdmissionCounts, AdmissionReport, LiveTarget, RoomWaiter},
    room::RoomWait,
};
