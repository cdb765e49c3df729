//! Workers that register at any replica while the fleet runs, and workers that operators drain:
//! known to every replica.
//!
//! They live in a bucket of the fleet's NATS server, one key per worker, so they outlive every
//! router. Each router follows the bucket, changes its own workers accordingly, and writes what was
//! registered with it.
//!
//! | module | what it has |
//! |---|---|
//! | `shared_worker` | what the fleet knows of one worker |
//! | `worker_change` | what a router changes about its workers, and why it does not |
//! | `value` | its form in the bucket |
//! | `pending` | a change that this router still has to write |
//! | `table` | pure: the bucket as last seen, pending changes, leases, and what this router has to change |
//! | `registrations` | [`Registrations`]: the table for the rest of the process |
//! | `sync` | [`RegistrationSync`]: the tasks that follow the bucket and write to it |
//!
//! Not here: which entry is a usable worker, and what a router does with it.
//!
//! **Invariant**: a call that registers a worker never waits for the server. The last write in the
//! bucket decides; a write states the revision that it replaces, so none is lost unseen.
//! **Invariant**: no wall clock is compared with another one's. Each router counts a lease from the
//! moment at which it saw the latest revision, and removes the key only at that revision.

mod pending;
mod registrations;
mod shared_worker;
mod sync;
mod table;
mod value;
mod worker_change;

pub use registrations::{RefusalCounts, RegistrationError, RegistrationReport, Registrations};
pub use shared_worker::{Registration, SharedWorker};
pub use sync::{RegistrationSink, RegistrationSync};
pub use worker_change::{Refusal, RegistrationRefusal, WorkerChange};
