//! Model of the lines for a checker: its atomics cannot be made by zeroing memory, so here each is
//! constructed. No unsafe code.

use std::{fmt, sync::OnceLock};

use crate::atomic::{AtomicU64, Ordering};

/// Words in a line.
pub(crate) const LINE_WORDS: usize = 8;
/// Bytes in a line.
pub(crate) const LINE_BYTES: u64 = 64;

/// Chunks of lines, as in `chunks.rs`.
pub(crate) struct LineChunks {
    chunks: Box<[LineChunk]>,
    log2: u32,
}

struct LineChunk {
    /// Stands for the pointer: 1 once the words exist.
    published: AtomicU64,
    words: OnceLock<Box<[AtomicU64]>>,
}

impl LineChunks {
    pub(crate) fn new(most: usize, log2: u32) -> Self {
        let chunk = |_| LineChunk {
            published: AtomicU64::new(0),
            words: OnceLock::new(),
        };
        Self {
            chunks: (0..most).map(chunk).collect(),
            log2,
        }
    }

    pub(crate) fn log2(&self) -> u32 {
        self.log2
    }

    pub(crate) fn most(&self) -> usize {
        self.chunks.len()
    }

    pub(crate) fn words(&self, line: u32, words: usize) -> Option<&[AtomicU64]> {
        let chunk = self.chunks.get((line >> self.log2) as usize)?;
        let first = (line & ((1 << self.log2) - 1)) as usize * LINE_WORDS;
        if chunk.published.load(Ordering::Acquire) == 0 {
            return None;
        }
        chunk.words.get()?.get(first..first + words)
    }

    pub(crate) fn line(&self, line: u32) -> Option<&[AtomicU64; LINE_WORDS]> {
        self.words(line, LINE_WORDS)?.first_chunk()
    }

    #[expect(clippy::unused_self, reason = "as in `chunks.rs`")]
    pub(crate) fn prefetch(&self, _line: u32) {}

    pub(crate) fn add(&self, number: usize) {
        let words = (0..LINE_WORDS << self.log2)
            .map(|_| AtomicU64::new(0))
            .collect();
        assert!(
            self.chunks[number].words.set(words).is_ok(),
            "each chunk is added once"
        );
        self.chunks[number].published.store(1, Ordering::Release);
    }
}

pub(crate) fn prefetch<T>(_what: &T) {}

impl fmt::Debug for LineChunks {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "LineChunks({}, 2^{} lines each)",
            self.chunks.len(),
            self.log2
        )
    }
}
