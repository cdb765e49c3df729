//! The outside world: time, randomness, tasks, blocking work and threads.
//!
//! All code of this project reads clocks, draws random numbers and starts work through this crate,
//! and opens sockets through `net`. The system answers, unless the calling thread is in a
//! [`SimulatedWorld`]: then time is the virtual time of the tokio runtime, random numbers come from a
//! seed, blocking work runs inside the runtime, and the sockets of `net` connect within the
//! process. So the whole product runs in simulated time without changes.
//!
//! Not here: timers and tokio's sets of tasks, which follow the runtime and its virtual time by
//! themselves; and files.
//!
//! **Invariant**: outside of a simulation a function here costs no more than the call it stands
//! for and the look at one thread-local value.

mod randomness;
mod simulation;
mod tasks;
mod time;

pub use randomness::{chance, random};
pub use simulation::{SimulatedWorld, is_simulated};
pub use tasks::{spawn, spawn_blocking, spawn_thread};
pub use time::{monotonic, start, system_time};
