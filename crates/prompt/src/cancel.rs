//! Cancellation of a computation that runs on another thread.
//!
//! A render and a computation of tokens cannot be interrupted from outside; they look at the flag of their thread's
//! scope between steps. A step inside a library is not interrupted.

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

/// Tells a computation that nobody waits for its result any more.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Cancels everything that runs, or will run, in a scope of this flag.
    pub fn cancel(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether [`Self::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Cancels when it is dropped: with the future that waits for the result.
    pub fn cancel_on_drop(&self) -> CancelGuard {
        CancelGuard(self.clone())
    }

    /// Runs `work` in the scope of this flag: renders and tokenizing in it fail with
    /// [`PromptError::Cancelled`](crate::PromptError::Cancelled) once the flag is set.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let outer = CURRENT.with(|current| current.replace(Some(Arc::clone(&self.0))));
        let _restore = RestoreFlag(outer);
        work()
    }
}

/// Sets its flag when it is dropped.
#[derive(Debug)]
pub struct CancelGuard(CancelFlag);

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Puts the outer scope's flag back, also when the work panics.
struct RestoreFlag(Option<Arc<AtomicBool>>);

impl Drop for RestoreFlag {
    fn drop(&mut self) {
        CURRENT.with(|current| current.replace(self.0.take()));
    }
}

/// Whether the computation of this thread was cancelled.
pub(crate) fn is_cancelled() -> bool {
    CURRENT.with(|current| {
        current
            .borrow()
            .as_ref()
            .is_some_and(|flag| flag.load(Relaxed))
    })
}
