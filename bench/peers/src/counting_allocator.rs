//! The allocator of this program: the same for every index, with optional counting.

use std::{
    alloc::{GlobalAlloc, Layout},
    sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
};

use mimalloc::MiMalloc;

/// mimalloc, which counts the requested bytes after a call of [`count`]. Until then counting costs
/// one read of a constant flag.
pub(crate) struct CountingAllocator;

static COUNTING: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// Starts to count.
pub(crate) fn count() {
    COUNTING.store(true, Relaxed);
}

/// Bytes allocated and not freed since counting began.
pub(crate) fn live_bytes() -> i64 {
    LIVE.load(Relaxed)
}

fn add(bytes: i64) {
    if COUNTING.load(Relaxed) {
        LIVE.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: every call is passed to mimalloc unchanged; counting touches two atomics and allocates
// nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: the caller's promise about the layout is passed on.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: the caller's promise about the layout is passed on.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(-(layout.size() as i64));
        // SAFETY: the caller's promise that `at` came from here with this layout is passed on.
        unsafe { MiMalloc.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promises about `at`, the layout and the size are passed on.
        unsafe { MiMalloc.realloc(at, layout, size) }
    }
}
