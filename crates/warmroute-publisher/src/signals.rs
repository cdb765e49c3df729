//! The signal masks of the library's threads.

#![allow(unsafe_code, reason = "calls of the C library of the system")]

use std::{mem, ptr};

/// Runs `start` with all signals blocked in this thread. Threads that it starts keep them blocked: the
/// engine's signals reach the engine's threads, and a write to a router that is gone does not end the
/// engine with SIGPIPE.
pub(crate) fn with_all_blocked<R>(start: impl FnOnce() -> R) -> R {
    let _blocked = BlockedSignals::new();
    start()
}

/// Dropping it restores the mask from before.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: a set of signals is plain data, of which all zeros are a value; the pointers are those
        // of local sets.
        unsafe {
            let mut all: libc::sigset_t = mem::zeroed();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the pointer is that of a set, and null for no result.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut());
        }
    }
}
