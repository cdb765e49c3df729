//! The router's one lock.
//!
//! Its release wakes the transport of the router's changes, if there are the first ones. With the
//! feature `lock-observer` a benchmark is notified when the lock is taken and released.

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

use crate::{replication::feed::FeedWaker, state::RouterState};

/// The state behind the router's one lock.
#[derive(Debug)]
pub(crate) struct StateLock(Mutex<RouterState>);

impl StateLock {
    pub(crate) fn new(state: RouterState) -> Self {
        Self(Mutex::new(state))
    }

    pub(crate) fn lock(&self) -> StateGuard<'_> {
        let state = self.0.lock();
        StateGuard {
            #[cfg(feature = "lock-observer")]
            _observed: observed::Hold::new(),
            state,
            waker: WakerOnDrop(None),
        }
    }
}

/// Access to the state while the lock is held.
pub(crate) struct StateGuard<'a> {
    // Dropped in this order: the waker is called when the lock is free.
    #[cfg(feature = "lock-observer")]
    _observed: observed::Hold,
    state: MutexGuard<'a, RouterState>,
    waker: WakerOnDrop,
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        let feed = self.state.feed.as_mut();
        self.waker.0 = feed.and_then(|feed| feed.take_waker());
    }
}

impl Deref for StateGuard<'_> {
    type Target = RouterState;

    fn deref(&self) -> &RouterState {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut RouterState {
        &mut self.state
    }
}

struct WakerOnDrop(Option<FeedWaker>);

impl Drop for WakerOnDrop {
    fn drop(&mut self) {
        if let Some(waker) = &self.0 {
            waker();
        }
    }
}

#[cfg(feature = "lock-observer")]
pub(crate) mod observed {
    use std::sync::OnceLock;

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

    /// The time for which the lock is held.
    pub(crate) struct Hold(());

    impl Hold {
        pub(super) fn new() -> Self {
            notify(LockEvent::Acquired);
            Self(())
        }
    }

    impl Drop for Hold {
        fn drop(&mut self) {
            notify(LockEvent::Released);
        }
    }
}
