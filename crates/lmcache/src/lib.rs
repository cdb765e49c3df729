//! Client of an LMCache controller: cached chunks per worker, and cached tokens of a prompt.
//!
//! LMCache stores KV blocks beside engines (host memory, disk, remote stores), and each instance
//! reports its content to a controller. [`Controller`] makes two queries: how many chunks each
//! instance holds, every few seconds from its own task, and how many leading tokens of a prompt
//! each holds, once per request. Source: LMCache 0.5.6, `GET /controller/workers` and `POST
//! /lookup`; contract V29, V30.
//!
//! Not here: the use of the answers (`routing`), tokens of prompts (`gateway`), and LMCache's KV
//! events, which need no code of their own (`kv-events`).
//!
//! **Invariant**: nothing the controller does makes a request fail, or wait longer than
//! [`routing::LmcacheSection::lookup_budget`]; after a missed budget no request waits for it until it
//! has answered in time again.
//! **Invariant**: its answers are bounded in bytes, in entries and by the prompt of the lookup.

mod controller;
mod gate;
mod occupancy;
mod reply;
mod telemetry;

pub use controller::Controller;
pub use occupancy::{MatchedTokens, Occupancy};
pub use reply::MOST_INSTANCES;
pub use telemetry::LookupResult;
