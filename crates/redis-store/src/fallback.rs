//! Who says that memory answers in the place of Redis.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::pool::PoolShared;

/// What has memory to go on with while the server is away. As long as there is one, metrics say so when it does.
#[derive(Debug)]
pub struct FallbackRegistration {
    shared: Arc<PoolShared>,
    is_slow: AtomicBool,
}

/// Of one pool.
#[derive(Debug, Default)]
pub(crate) struct FallbackRegistry {
    all: AtomicUsize,
    /// For which the server, though it is there, is too slow.
    slow: AtomicUsize,
}

impl FallbackRegistration {
    pub(crate) fn new(shared: Arc<PoolShared>) -> Self {
        shared.fallbacks.all.fetch_add(1, Ordering::Relaxed);
        Self {
            shared,
            is_slow: AtomicBool::new(false),
        }
    }

    /// Says whether memory answers also while the server is there.
    pub fn answers_for_a_slow_server(&self, is_slow: bool) {
        if self.is_slow.swap(is_slow, Ordering::Relaxed) != is_slow {
            let slow = &self.shared.fallbacks.slow;
            if is_slow {
                slow.fetch_add(1, Ordering::Relaxed)
            } else {
                slow.fetch_sub(1, Ordering::Relaxed)
            };
        }
    }
}

impl Drop for FallbackRegistration {
    fn drop(&mut self) {
        self.answers_for_a_slow_server(false);
        self.shared.fallbacks.all.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FallbackRegistry {
    /// Whether memory answers in the place of a server that is there, or is not.
    pub(crate) fn is_any_active(&self, server_is_up: bool) -> bool {
        let some = |count: &AtomicUsize| count.load(Ordering::Relaxed) > 0;
        some(&self.slow) || (!server_is_up && some(&self.all))
    }
}
