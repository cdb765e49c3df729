//! One waker for many tasks that wait for the same event.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use parking_lot::Mutex;

/// Wakes all tasks that registered since the last wake.
#[derive(Debug, Default)]
pub(super) struct Wakers(Mutex<Vec<(u64, Waker)>>);

impl Wakers {
    /// Registers a waker for `id`; one per id, so there are never more than waiting tasks.
    pub(super) fn register(&self, id: u64, waker: &Waker) {
        let mut all = self.0.lock();
        match all.iter_mut().find(|(known, _)| *known == id) {
            Some((_, known)) => known.clone_from(waker),
            None => all.push((id, waker.clone())),
        }
    }

    pub(super) fn forget(&self, id: u64) {
        self.0.lock().retain(|(known, _)| *known != id);
    }

    pub(super) fn wake_all(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        for (_, waker) in all {
            waker.wake();
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }
}
