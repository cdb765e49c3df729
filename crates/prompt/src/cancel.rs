//! Cancellation of a computation that runs on another thread.
//!
//! A render or a tokenization cannot be interrupted from outside; it checks the flag of its
//! thread's scope between steps. A step inside a library is not interrupted.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

thread_local! {
    /// The flag of the innermost [`CancelFlag::run`] on this thread.
    static CURRENT: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Cancels a computation whose result is no longer needed.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Cancels every running and future computation in a scope of this flag.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }

    /// Returns whether [`Self::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Returns a guard that cancels on drop: with the future that waits for the result.
    pub fn cancel_on_drop(&self) -> CancelGuard {
        CancelGuard(self.clone())
    }

    /// Runs `work` in the scope of this flag: renders and tokenizations in it fail with
    /// [`PromptError::Cancelled`](crate::PromptError::Cancelled) once the flag is set.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let outer = CURRENT.with(|current| current.replace(Some(Arc::clone(&self.0))));
        let _restore = RestoreFlag(outer);
        work()
    }
}

/// A guard that sets its flag on drop.
#[derive(Debug)]
pub struct CancelGuard(CancelFlag);

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// A guard that restores the outer scope's flag, also if the work panics.
struct RestoreFlag(Option<Arc<AtomicBool>>);

impl Drop for RestoreFlag {
    fn drop(&mut self) {
        CURRENT.with(|current| current.replace(self.0.take()));
    }
}

/// Returns whether the computation of this thread was cancelled.
pub(crate) fn is_cancelled() -> bool {
    CURRENT.with(|current| {
        current
            .borrow()
            .as_ref()
            .is_some_and(|flag| flag.load(Relaxed))
    })
}
