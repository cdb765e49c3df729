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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_task_is_woken_once_by_its_latest_waker_unless_it_has_left() {
        let tasks: [Arc<Woken>; 4] = Default::default();
        let wakers = Arc::<Wakers>::default();
        for (id, task) in [(1, 0), (1, 1), (2, 2), (3, 3)] {
            wakers.register(id, &Waker::from(Arc::clone(&tasks[task])));
        }
        wakers.forget(3);
        let count = || tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        Waker::from(Arc::clone(&wakers)).wake();
        assert_eq!(count(), [0, 1, 1, 0]);
        wakers.wake_all();
        assert_eq!(count(), [0, 1, 1, 0], "nobody has registered since");
    }
}
