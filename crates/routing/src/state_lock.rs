//! The router's one lock.
//!
//! With the feature `lock-observer` a benchmark is notified when the lock is taken and released;
//! without it there is only the lock.

use parking_lot::{Mutex, MutexGuard};

use crate::state::RouterState;

/// The state behind the router's one lock.
#[derive(Debug)]
pub(crate) struct StateLock(Mutex<RouterState>);

#[cfg(not(feature = "lock-observer"))]
pub(crate) type StateGuard<'a> = MutexGuard<'a, RouterState>;
#[cfg(feature = "lock-observer")]
pub(crate) use self::observed::StateGuard;

impl StateLock {
    pub(crate) fn new(state: RouterState) -> Self {
        Self(Mutex::new(state))
    }

    #[cfg(not(feature = "lock-observer"))]
    pub(crate) fn lock(&self) -> StateGuard<'_> {
        self.0.lock()
    }

    #[cfg(feature = "lock-observer")]
    pub(crate) fn lock(&self) -> StateGuard<'_> {
        StateGuard::new(self.0.lock())
    }
}

#[cfg(feature = "lock-observer")]
pub(crate) mod observed {
    use std::{
        ops::{Deref, DerefMut},
        sync::OnceLock,
    };

    use super::{MutexGuard, RouterState};

    /// A change of the lock.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LockEvent {
        /// This thread took the lock.
        Acquired,
        /// This thread is about to release it.
        Released,
    }

    static OBSERVER: OnceLock<fn(LockEvent)> = OnceLock::new();

    /// Sets the observer of the lock, for all routers of the process. Later calls do nothing.
    pub fn observe_lock(observer: fn(LockEvent)) {
        OBSERVER.get_or_init(|| observer);
    }

    fn notify(event: LockEvent) {
        if let Some(observer) = OBSERVER.get() {
            observer(event);
        }
    }

    /// Access to the state while the lock is held.
    pub(crate) struct StateGuard<'a>(MutexGuard<'a, RouterState>);

    impl<'a> StateGuard<'a> {
        pub(super) fn new(guard: MutexGuard<'a, RouterState>) -> Self {
            notify(LockEvent::Acquired);
            Self(guard)
        }
    }

    impl Drop for StateGuard<'_> {
        fn drop(&mut self) {
            notify(LockEvent::Released);
        }
    }

    impl Deref for StateGuard<'_> {
        type Target = RouterState;

        fn deref(&self) -> &RouterState {
            &self.0
        }
    }

    impl DerefMut for StateGuard<'_> {
        fn deref_mut(&mut self) -> &mut RouterState {
            &mut self.0
        }
    }
}
