//! One waker for many tasks that wait for the same thing.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use parking_lot::Mutex;

/// Wakes everybody who registered since it last did.
#[derive(Debug, Default)]
pub(super) struct Wakers(Mutex<Vec<(u64, Waker)>>);

impl Wakers {
    /// `id` wants to be woken; one place for each, so there are never more than there are who wait.
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
