//! Frees the index memory of removed caches in the background.
//!
//! **Invariant**: at most one thread sweeps, and it ends when nothing is left to free.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use kv_index::KvIndex;

/// Starter of the sweeping thread, where none runs.
#[derive(Debug)]
pub(crate) struct IndexSweeper {
    index: Arc<KvIndex>,
    running: Arc<AtomicBool>,
}

impl IndexSweeper {
    pub(crate) fn new(index: Arc<KvIndex>) -> Self {
        Self {
            index,
            running: Arc::default(),
        }
    }

    /// Signals that there is something to sweep. Cheap and non-blocking.
    pub(crate) fn wake(&self) {
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (index, running) = (Arc::clone(&self.index), Arc::clone(&self.running));
        let started = runtime::spawn_thread("index-sweeper", move || sweep(&index, &running));
        if let Err(error) = started {
            self.running.store(false, Ordering::Release);
            tracing::warn!(%error, "no thread to free the index's memory of lost caches: it is freed with the next one");
        }
    }
}

fn sweep(index: &KvIndex, running: &AtomicBool) {
    loop {
        while index.sweep() {
            thread::yield_now();
        }
        running.store(false, Ordering::Release);
        // A caller that retired a cache before that line saw a running thread.
        if !index.sweep() || running.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}
