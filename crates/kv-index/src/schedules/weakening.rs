//! The checker's atomics. One of their orderings can be removed, because models that do not fail
//! then prove nothing.
//!
//! `KV_INDEX_WEAKENED=src/runs/head.rs:210:9` removes the fence there, or makes the load or store
//! there relaxed. With `KV_INDEX_SITES` set, every place with an ordering stronger than relaxed
//! that a model reaches is printed.

use std::{
    collections::BTreeSet,
    env,
    panic::Location,
    sync::{LazyLock, Mutex, PoisonError},
};

use loom::sync::atomic::{self, Ordering};

static WEAKENED: LazyLock<Option<String>> = LazyLock::new(|| env::var("KV_INDEX_WEAKENED").ok());
static REPORTED: LazyLock<Option<Mutex<BTreeSet<String>>>> =
    LazyLock::new(|| env::var_os("KV_INDEX_SITES").map(|_| Mutex::default()));

/// Returns `order`, unless it is removed at the caller's place.
#[track_caller]
fn effective(order: Ordering) -> Ordering {
    if order == Ordering::Relaxed || WEAKENED.is_none() && REPORTED.is_none() {
        return order;
    }
    let location = Location::caller();
    let file = location.file();
    let location = format!(
        "{}:{}:{}",
        &file[file.find("src/").unwrap_or(0)..],
        location.line(),
        location.column()
    );
    if let Some(reported) = &*REPORTED
        && reported
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(location.clone())
    {
        eprintln!("site {location} {order:?}");
    }
    if WEAKENED.as_ref() == Some(&location) {
        Ordering::Relaxed
    } else {
        order
    }
}

#[track_caller]
pub(crate) fn fence(order: Ordering) {
    let order = effective(order);
    if order != Ordering::Relaxed {
        atomic::fence(order);
    }
}

/// A word of the structure.
#[derive(Debug)]
pub(crate) struct AtomicU64 {
    word: atomic::AtomicU64,
    /// The last stored value: storing an equal one again would only multiply the checker's work.
    last: std::sync::atomic::AtomicU64,
}

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        Self {
            word: atomic::AtomicU64::new(value),
            last: value.into(),
        }
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.word.load(effective(order))
    }

    #[track_caller]
    pub(crate) fn store(&self, value: u64, order: Ordering) {
        let order = effective(order);
        if self.last.swap(value, Ordering::Relaxed) != value || order != Ordering::Relaxed {
            self.word.store(value, order);
        }
    }

    #[track_caller]
    pub(crate) fn fetch_add(&self, more: u64, order: Ordering) -> u64 {
        self.last.fetch_add(more, Ordering::Relaxed);
        self.word.fetch_add(more, effective(order))
    }
}

#[derive(Debug)]
pub(crate) struct AtomicU32(atomic::AtomicU32);

impl AtomicU32 {
    pub(crate) fn new(value: u32) -> Self {
        Self(atomic::AtomicU32::new(value))
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.0.load(effective(order))
    }

    #[track_caller]
    pub(crate) fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, effective(order));
    }
}
