//! Admission: which requests wait until a cache has room for them.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /admin/sessions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionsReport {
    /// Whether `routing.admission` is on.
    pub enabled: bool,
    /// How long a request's blocks count as in use after it ended, in seconds.
    pub keep_seconds: f64,
    /// Share of these blocks that counts, 0 to 1: none while prompts mostly do not return.
    pub return_share: f64,
    /// The caches that are followed.
    pub workers: Vec<CacheInUse>,
    /// Requests that wait for room.
    pub waiting_total: u64,
    /// Some of them: by the workers that they wait for, in the order in which they are let in without room.
    pub waiting: Vec<WaitingForRoom>,
    /// Requests that found no room, since the start of the router.
    pub ended: AdmissionEnds,
}

/// The blocks that one cache has in use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheInUse {
    /// The worker's name.
    pub worker: Arc<str>,
    /// The rank.
    pub dp_rank: u32,
    /// Blocks of running requests, and of those that ended lately.
    pub live_blocks: u64,
    /// Blocks that the cache holds; `null`: not known, and no request waits for room there.
    pub capacity_blocks: Option<u64>,
    /// Milliseconds that it may spend on requests without room; below zero after it spent some.
    pub credit_ms: f64,
}

/// A request that waits for room.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingForRoom {
    /// Its number in the queue.
    pub ticket: u64,
    /// Its tenant.
    pub tenant: Arc<str>,
    /// The worker that lacks least room for it.
    pub worker: Arc<str>,
    /// How long it has waited, in seconds.
    pub waited_seconds: f64,
    /// How long it will wait at the rate at which requests are let in, in seconds.
    pub expected_seconds: f64,
    /// Requests before it that wait for the same workers.
    pub ahead: u64,
    /// Blocks that it needs besides those in use.
    pub needed_blocks: u64,
    /// The reason as a sentence.
    pub reason: String,
}

/// How requests that found no room ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdmissionEnds {
    /// Sent when there was room.
    pub room: u64,
    /// Sent without room, in the time that workers spend on such requests.
    pub budget: u64,
    /// Sent without room at the end of the longest wait.
    pub overdue: u64,
    /// Refused on arrival: they would have been let in too late for their time limits.
    pub refused: u64,
}
