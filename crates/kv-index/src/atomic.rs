//! The atomics that readers and the writer share, and the writer's lock: the standard library's, or
//! those of a checker of schedules (`check-concurrency`).

#[cfg(loom)]
pub(crate) use loom::sync::atomic::Ordering;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use parking_lot::Mutex;
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(any(loom, shuttle))]
pub(crate) use crate::schedules::lock::Mutex;
#[cfg(loom)]
pub(crate) use crate::schedules::weakening::{AtomicU32, AtomicU64, fence};

#[cfg(loom)]
use loom as source;
#[cfg(shuttle)]
use shuttle as source;
#[cfg(not(any(loom, shuttle)))]
use std as source;

/// Rounds of waiting until a thread yields: some microseconds, more than a change of a run takes.
const ROUNDS: u32 = 100;

/// Waits briefly for the writer. A writer that was preempted during a change may need this thread's
/// processor.
#[cold]
pub(crate) fn pause(round: &mut u32) {
    if *round < ROUNDS {
        source::hint::spin_loop();
        *round += 1;
    } else {
        source::thread::yield_now();
    }
}
