//! Supervision of long-lived tasks.
//!
//! A task that serves as long as its owner lives runs under a [`Task`]: a panic is caught, counted
//! in `warmroute_task_panics_total{task}` and logged with the task's name, and the task is started
//! again after a pause that doubles while it keeps panicking. [`supervise`] is for
//! tasks that need nothing from the attempt before; [`Task::attempt`] is for tasks that continue
//! with their state; [`contain`] is for tasks whose owner restarts them by its own rules.
//!
//! Not in this crate: the list of tasks, the way their owners stop them (they hold the handle of
//! the spawned task, as without supervision), and panics of requests, which the gateway answers.
//!
//! **Invariant**: a panic ends one attempt. State that outlives an attempt is owned outside of it,
//! and a comment at the call explains why the state is consistent after a panic. No lock is
//! poisoned: this project uses `parking_lot`.
//!
//! # Injected panics
//!
//! In builds with debug assertions the environment variable `WARMROUTE_TEST_PANICS` injects panics,
//! for tests and fault campaigns. A release build does not read it; [`panic_point`] describes its
//! form.

mod injection;
mod metrics;
mod task;

pub use injection::panic_point;
pub use metrics::register;
pub use task::{Task, TaskPanic, contain, supervise};
