//! The checker's lock, with the interface of the usual one.

#[cfg(loom)]
use loom::sync;
#[cfg(shuttle)]
use shuttle::sync;

#[derive(Debug)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(guarded: T) -> Self {
        Self(sync::Mutex::new(guarded))
    }

    pub(crate) fn lock(&self) -> sync::MutexGuard<'_, T> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
