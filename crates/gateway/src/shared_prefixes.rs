//! The memory of shared prompt beginnings: the last worker for each, behind a lock held for one
//! lookup.
//!
//! Each router has its own. A memory that several routers share would have the same interface.

use std::sync::atomic::{AtomicBool, Ordering};

use dialect::RequestView;
use kv_blocks::{Moment, WorkerId};
use parking_lot::Mutex;
use routing::{PrefixMemory, SharedPrefixRouting};
use xxhash_rust::xxh3::xxh3_64;

/// The memory that all requests share.
#[derive(Debug)]
pub(crate) struct SharedPrefixes {
    /// Length of a beginning, in characters.
    prefix_chars: usize,
    memory: Mutex<PrefixMemory>,
    /// Whether entries stay but no new ones are added.
    closed: AtomicBool,
}

impl SharedPrefixes {
    pub(crate) fn new(settings: SharedPrefixRouting) -> Self {
        Self {
            prefix_chars: settings.prefix_chars,
            memory: Mutex::new(PrefixMemory::new(settings)),
            closed: AtomicBool::new(false),
        }
    }

    /// Returns the hash of the model and the prompt's beginning; `None` for a prompt without text.
    pub(crate) fn key(&self, view: &RequestView<'_>) -> Option<u64> {
        let beginning = dialect::opening(view, self.prefix_chars)?;
        // Prompts under two salts share no blocks. No model's name contains the separator.
        let salt = view.cache_salt.as_deref().unwrap_or_default();
        Some(xxh3_64(
            format!("{}\0{salt}\0{beginning}", view.model).as_bytes(),
        ))
    }

    pub(crate) fn find(&self, now: Moment, key: u64) -> Option<WorkerId> {
        self.memory.lock().find(now, key)
    }

    pub(crate) fn record_served(&self, now: Moment, key: u64, worker: WorkerId, random: u64) {
        if !self.closed.load(Ordering::Relaxed) {
            self.memory.lock().record_served(now, key, worker, random);
        }
    }

    /// Sets whether new beginnings are added.
    pub(crate) fn set_accepts_new(&self, takes: bool) {
        self.closed.store(!takes, Ordering::Relaxed);
    }

    /// Drops entries down to half of the bound.
    pub(crate) fn shrink(&self) {
        self.memory.lock().shrink();
    }
}
