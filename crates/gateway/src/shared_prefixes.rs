//! Who served prompts that begin alike: the memory of this router, behind a lock held for one look.
//!
//! Each router has its own. One that several routers share would answer the same two questions.

use std::sync::atomic::{AtomicBool, Ordering};

use dialect::RequestView;
use kv_blocks::{Moment, WorkerId};
use parking_lot::Mutex;
use routing::{PrefixMemory, PrefixMemorySettings};
use xxhash_rust::xxh3::xxh3_64;

/// How beginnings are remembered.
#[derive(Clone, Copy, Debug)]
pub struct SharedPrefixSettings {
    /// Characters of a prompt that count.
    pub prefix_chars: usize,
    /// The memory.
    pub memory: PrefixMemorySettings,
}

/// The memory that all requests share.
#[derive(Debug)]
pub(crate) struct SharedPrefixes {
    prefix_chars: usize,
    memory: Mutex<PrefixMemory>,
    /// What is there stays, and nothing new comes.
    closed: AtomicBool,
}

impl SharedPrefixes {
    pub(crate) fn new(settings: SharedPrefixSettings) -> Self {
        Self {
            prefix_chars: settings.prefix_chars,
            memory: Mutex::new(PrefixMemory::new(settings.memory)),
            closed: AtomicBool::new(false),
        }
    }

    /// Hash of the model and of how its prompt begins; `None` where there is no text.
    pub(crate) fn key(&self, view: &RequestView<'_>) -> Option<u64> {
        let beginning = dialect::opening(view, self.prefix_chars)?;
        // No model's name holds what stands between.
        Some(xxh3_64(format!("{}\0{beginning}", view.model).as_bytes()))
    }

    pub(crate) fn find(&self, now: Moment, key: u64) -> Option<WorkerId> {
        self.memory.lock().find(now, key)
    }

    pub(crate) fn record_served(&self, now: Moment, key: u64, worker: WorkerId, random: u64) {
        if !self.closed.load(Ordering::Relaxed) {
            self.memory.lock().record_served(now, key, worker, random);
        }
    }

    /// Whether new beginnings are remembered.
    pub(crate) fn set_accepts_new(&self, takes: bool) {
        self.closed.store(!takes, Ordering::Relaxed);
    }

    /// Remembers half of what it may at most.
    pub(crate) fn shrink(&self) {
        self.memory.lock().shrink();
    }
}
