//! Memory in lines of 64 bytes, addressed by number; it is not freed during the life of the index.
//!
//! The only unsafe code of the crate. Its conditions:
//! - A chunk is published once, with release, after it was zeroed, and never replaced or freed
//!   before `LineChunks` is dropped (which needs `&mut self`: no reader is left). So a pointer read
//!   from the table stays valid for as long as `&self`.
//! - Every word is an atomic, so a read of a line that was reused meanwhile gives a value, not
//!   undefined behaviour. Versions elsewhere check whether the value is meaningful.
//! - All zero bits are a valid line of atomics.

#![allow(
    unsafe_code,
    reason = "see above: zeroed memory, slices of atomics in it, and hints to the processor"
)]

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    fmt,
    ptr::null_mut,
    slice,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

/// Words in a line.
pub(crate) const LINE_WORDS: usize = 8;
/// Bytes in a line.
pub(crate) const LINE_BYTES: u64 = 64;

/// Chunks of lines. Numbers run through all chunks; an extent of lines lies within one chunk.
pub(crate) struct LineChunks {
    chunks: Box<[AtomicPtr<AtomicU64>]>,
    /// Lines per chunk, as a power of two.
    log2: u32,
}

impl LineChunks {
    /// Creates an empty set of at most `most` chunks of `1 << log2` lines each.
    pub(crate) fn new(most: usize, log2: u32) -> Self {
        Self {
            chunks: (0..most).map(|_| AtomicPtr::new(null_mut())).collect(),
            log2,
        }
    }

    /// Returns the lines per chunk, as a power of two.
    pub(crate) fn log2(&self) -> u32 {
        self.log2
    }

    /// Returns the maximum number of chunks.
    pub(crate) fn most(&self) -> usize {
        self.chunks.len()
    }

    /// Returns the words of `lines` lines from `line` on; `None` if they do not exist or cross the
    /// end of their chunk: a reader with stale data may ask for any line.
    #[inline]
    pub(crate) fn words(&self, line: u32, words: usize) -> Option<&[AtomicU64]> {
        let start = self
            .chunks
            .get((line >> self.log2) as usize)?
            .load(Ordering::Acquire);
        let first = (line & ((1 << self.log2) - 1)) as usize * LINE_WORDS;
        // `first` is below the length of a chunk. A sum with `words` could wrap, since this crate is
        // built without overflow checks.
        if start.is_null() || words > (LINE_WORDS << self.log2) - first {
            return None;
        }
        // SAFETY: the chunk has `LINE_WORDS << log2` initialised atomics, lives as long as `self`,
        // and the range was checked against it.
        Some(unsafe { slice::from_raw_parts(start.add(first), words) })
    }

    /// Returns the words of one line.
    #[inline]
    pub(crate) fn line(&self, line: u32) -> Option<&[AtomicU64; LINE_WORDS]> {
        self.words(line, LINE_WORDS)?.first_chunk()
    }

    /// Prefetches a line, if it exists.
    #[inline]
    pub(crate) fn prefetch(&self, line: u32) {
        if let Some(line) = self.line(line) {
            prefetch(line);
        }
    }

    /// Adds chunk `number`, zeroed. One caller at a time, each number once.
    pub(crate) fn add(&self, number: usize) {
        let layout = self.layout();
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        // Before the first touch, when the kernel chooses the size of pages.
        advise_huge_pages(start, layout.size());
        // SAFETY: just allocated with that many bytes.
        unsafe { start.write_bytes(0, layout.size()) };
        collapse_to_huge_pages(start, layout.size());
        let before = self.chunks[number].swap(start.cast(), Ordering::Release);
        assert!(before.is_null(), "each chunk is added once");
    }

    fn layout(&self) -> Layout {
        let bytes = (LINE_BYTES as usize) << self.log2;
        // Aligned to its own size up to a huge page, so that it can be one.
        Layout::from_size_align(bytes, bytes.clamp(64, 2 << 20))
            .expect("a chunk is a small power of two")
    }
}

/// Prefetches the memory of `what`.
#[inline]
pub(crate) fn prefetch<T>(what: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it changes no memory and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(what).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = what;
}

impl Drop for LineChunks {
    fn drop(&mut self) {
        let layout = self.layout();
        for chunk in &mut self.chunks {
            let start = *chunk.get_mut();
            if !start.is_null() {
                // SAFETY: allocated by `add` with this layout; `&mut self` excludes readers.
                unsafe { dealloc(start.cast(), layout) };
            }
        }
    }
}

impl fmt::Debug for LineChunks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self
            .chunks
            .iter()
            .filter(|chunk| !chunk.load(Ordering::Relaxed).is_null())
            .count();
        write!(
            out,
            "Chunks({used} of {}, 2^{} lines each)",
            self.chunks.len(),
            self.log2
        )
    }
}

/// Collapses small pages: memory that the allocator used before has them, whatever was advised.
fn collapse_to_huge_pages(start: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    if bytes >= 2 << 20 {
        // SAFETY: the range was just allocated, and what is in it stays the same.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_COLLAPSE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// Requests huge pages, which save the processor a page walk per access. The result is ignored,
/// since this is only an optimisation.
fn advise_huge_pages(start: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    if bytes >= 2 << 20 {
        // SAFETY: the range was just allocated, and the advice does not change what is in it.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}
