//! Simulation of a policy on a workload: the real routing core, in virtual time, in front of
//! modelled engines.
//!
//! A [`Trace`], recorded or [`Synthetic`], contains the arrival times of requests, the lengths of
//! their prompts and replies, and the blocks they share. [`run`] sends it through a
//! [`routing::Router`] over a [`kv_index::KvIndex`], the same code that `warmroute serve` runs, to
//! [`engine_model::Engine`]s whose events arrive late, or not at all. Several routers may stand in
//! front of the engines, and tell each other their load ([`ReplicaPlan`]). The result is a
//! [`CellReport`], which [`html`] renders as a page.
//!
//! A trace is played by its recorded arrivals, or in a closed loop ([`SessionPlan`]): its sessions
//! wait for each reply before their next request. [`compare`] plays several traces under `warm` and
//! under the rules of other routers, side by side ([`ComparisonReport`]).
//!
//! Nothing here reads a file, a clock or a random device: the same trace and the same [`Cell`] give
//! the same report. Not modelled: separate prefill and decode, replay of lost events, caches behind
//! the device.
//!
//! **Invariant**: the router sees what it would see in front of real engines, and nothing else: its
//! own decisions, first tokens, ends of replies, and events and messages of other routers when they
//! arrive.

mod cell;
mod columns;
mod comparison;
mod engines;
mod event_queue;
mod figures;
mod fit;
pub mod html;
mod load;
mod outcome;
mod plan;
mod random;
mod report;
mod run;
mod run_all;
mod search;
mod session_plan;
mod spread;
mod synthetic;
mod text;
mod trace;
mod wire;

pub use cell::{Cell, FaultPlan, LostView, ReplicaPlan, SlowEngine, TracePace};
pub use columns::{Column, columns};
pub use comparison::{
    BOUNDS, Bound, CONTENDERS, ComparedFigure, ComparedPace, ComparedTrace, ComparisonCell,
    ComparisonPlan, ComparisonReport, ComparisonRow, Contender, GateLoss, compare,
};
pub use engine_model::FetchLink;
pub use fit::{FitError, FitReport, FitResult, ServedRequest, fit};
pub use load::{infinite_hit_ratio, speedup_for};
pub use plan::{ExperimentPlan, PlannedPace, SessionNumbers, ranges};
pub use report::{
    CellReport, GoalReport, LoadSyncReport, Milliseconds, PredictionReport, RequestReport,
    SessionReport, SimulationReport, SloReport, TraceSummary, WorkerReport,
};
pub use run::{run, run_in_detail};
pub use run_all::run_all;
pub use session_plan::{SessionPlan, sessions_for};
pub use synthetic::{KINDS, Parameter, Synthetic, SyntheticError, WorkloadKind};
pub use text::{MOST_TEXT_BYTES, TextError, text_of};
pub use trace::{Trace, TraceError, TraceModel, TraceRequest, block_size_of};
