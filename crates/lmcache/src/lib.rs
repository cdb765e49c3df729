//! A controller of LMCache: what it says of who has how much cached, and how much of a prompt.
//!
//! LMCache keeps KV blocks beside engines (host memory, disk, remote stores), and its controller is told by each instance
//! what it holds. [`Controller`] asks it for two things: how many chunks each instance holds, every few seconds from one
//! task of its own, and how many leading tokens of a prompt each holds, once per request. Source: LMCache 0.5.6,
//! `GET /controller/workers` and `POST /lookup`; contract V29, V30.
//!
//! Not here: what is made of the answers (`routing`), tokens of prompts (`gateway`), and LMCache's KV events, which need
//! no code of their own (`kv-events`).
//!
//! **Invariant**: nothing the controller does makes a request fail, or wait longer than [`ControllerSettings::lookup_budget`];
//! one that is away or slow is waited for by nobody until it was seen to answer in time.
//! **Invariant**: what it answers is bounded in bytes, in entries and by the prompt that was asked about.

mod controller;
mod gate;
mod instances;
mod occupancy;
mod reply;
mod settings;
mod telemetry;

pub use controller::Controller;
pub use instances::Instances;
pub use occupancy::{MatchedTokens, Occupancy};
pub use reply::MOST_INSTANCES;
pub use settings::{ControllerSettings, LookupMode, bearer};
pub use telemetry::LookupResult;
