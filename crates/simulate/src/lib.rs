//! What a policy would do with a workload: the real routing core, in virtual time, in front of modelled engines.
//!
//! A [`Trace`], recorded or [`Synthetic`], says when requests came, how long they and their replies were and which blocks
//! they share. [`run`] sends it through a [`routing::Router`] over a [`kv_index::KvIndex`], the very ones that
//! `warmroute serve` runs, to [`engine_model::Engine`]s whose announcements come back late, or not at all. What comes out
//! is a [`CellReport`], of which [`html`] makes a page.
//!
//! Nothing here reads a file, a clock or a random device: the same trace and the same [`Cell`] give the same report. What
//! is not modelled: prefill and decode apart, replay of lost events, caches behind the device, clients that wait for an
//! answer before they ask again.
//!
//! **Invariant**: the router sees what it would see in front of real engines, and nothing else: its own decisions, first
//! tokens, ends of replies, and announcements when they arrive.

mod cell;
mod columns;
mod engines;
mod event_queue;
mod figures;
mod fit;
pub mod html;
mod load;
mod outcome;
mod random;
mod report;
mod run;
mod spread;
mod synthetic;
mod trace;
mod wire;

pub use cell::{Cell, FaultPlan, LostView, SlowEngine, TracePace};
pub use columns::{COLUMNS, Column};
pub use fit::{FitError, FitReport, FitResult, ServedRequest, fit};
pub use load::{infinite_hit_ratio, speedup_for};
pub use report::{
    CellReport, Milliseconds, RequestReport, SimulationReport, TraceSummary, WorkerReport,
};
pub use run::{run, run_in_detail};
pub use synthetic::{KINDS, Parameter, Synthetic, SyntheticError, WorkloadKind};
pub use trace::{Trace, TraceError, TraceRequest};
