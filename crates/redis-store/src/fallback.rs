//! Registration of the stores that answer from memory in the place of Redis.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::pool::PoolShared;

/// Registration of a store with a fallback in memory. While one exists, metrics report when the
/// fallback is active.
#[derive(Debug)]
pub struct FallbackRegistration {
    shared: Arc<PoolShared>,
    is_slow: AtomicBool,
}

/// Registered fallbacks of one pool.
#[derive(Debug, Default)]
pub(crate) struct FallbackRegistry {
    all: AtomicUsize,
    /// Fallbacks that are active although the server is up, because it is too slow for them.
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

    /// Sets whether the fallback answers also while the server is up.
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
    /// Returns whether a fallback is active while the server is up, or while it is down.
    pub(crate) fn is_any_active(&self, server_is_up: bool) -> bool {
        let some = |count: &AtomicUsize| count.load(Ordering::Relaxed) > 0;
        some(&self.slow) || (!server_is_up && some(&self.all))
    }
}
