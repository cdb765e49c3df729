//! The heads of all runs.

use super::head::RunHead;
use crate::{
    arena::{LINE_WORDS, LineChunks, prefetch},
    atomic::{AtomicU32, AtomicU64, Ordering, fence, pause},
};

/// All heads: in slabs of lines that are never reused, so the version in a head's first word
/// continues when a run's number is used again.
#[derive(Debug)]
pub(crate) struct RunHeads {
    /// First line of each slab, plus one; 0 without a slab.
    slabs: Box<[AtomicU32]>,
    /// Heads per slab, as a power of two.
    log2: u32,
    /// 1 once a change was left incomplete; no reader may wait for its end.
    abandoned: AtomicU32,
}

impl RunHeads {
    /// Creates an empty set of at most `most` slabs of `1 << log2` heads.
    pub(crate) fn new(most: usize, log2: u32) -> Self {
        Self {
            slabs: (0..most).map(|_| AtomicU32::new(0)).collect(),
            log2,
            abandoned: AtomicU32::new(0),
        }
    }

    /// Returns the heads per slab.
    pub(crate) fn slab(&self) -> u32 {
        1 << self.log2
    }

    /// Returns the maximum number of heads.
    pub(crate) fn most(&self) -> u32 {
        (self.slabs.len() << self.log2)
            .try_into()
            .unwrap_or(u32::MAX)
    }

    /// Adds a slab of zeroed lines from `first` on, for runs from `run` on.
    pub(crate) fn add(&self, run: u32, first: u32) {
        self.slabs[(run >> self.log2) as usize].store(first + 1, Ordering::Release);
    }

    #[inline]
    fn find<'a>(&self, body: &'a LineChunks, run: u32) -> Option<&'a [AtomicU64; LINE_WORDS]> {
        let first = self
            .slabs
            .get((run >> self.log2) as usize)?
            .load(Ordering::Acquire)
            .checked_sub(1)?;
        body.line(first + (run & ((1 << self.log2) - 1)))
    }

    /// Copies a head as it was at one moment; returns whether the head exists.
    #[inline]
    pub(crate) fn read(&self, body: &LineChunks, run: u32, head: &mut RunHead) -> bool {
        let Some(line) = self.find(body, run) else {
            return false;
        };
        let mut round = 0;
        loop {
            let first = line[0].load(Ordering::Acquire);
            if first & 1 == 1 {
                if self.abandoned() {
                    return false;
                }
                pause(&mut round);
                continue;
            }
            head.0[0] = first;
            for (copy, word) in head.0.iter_mut().zip(line).skip(1) {
                *copy = word.load(Ordering::Relaxed);
            }
            // Pairs with the writer's release fence in `begin`: a reader that saw any of its words
            // sees the version too.
            fence(Ordering::Acquire);
            if line[0].load(Ordering::Relaxed) == first {
                return true;
            }
        }
    }

    /// Returns whether `run` is unchanged since `head`. Call after an acquire fence that follows
    /// all reads that depend on it.
    #[inline]
    pub(crate) fn unchanged(&self, body: &LineChunks, run: u32, head: &RunHead) -> bool {
        self.find(body, run)
            .is_some_and(|line| line[0].load(Ordering::Relaxed) == head.0[0])
    }

    #[inline]
    pub(crate) fn prefetch(&self, body: &LineChunks, run: u32) {
        if let Some(line) = self.find(body, run) {
            prefetch(line);
        }
    }

    /// Returns the head in the writer's view.
    #[inline]
    pub(crate) fn get(&self, body: &LineChunks, run: u32) -> RunHead {
        let mut head = [0; LINE_WORDS];
        for (copy, word) in head.iter_mut().zip(self.line(body, run)) {
            *copy = word.load(Ordering::Relaxed);
        }
        RunHead(head)
    }

    /// Starts a change of a run (its head, its hashes, its area): new readers wait, readers that
    /// have begun start over.
    #[inline]
    pub(crate) fn begin(&self, body: &LineChunks, run: u32) {
        let word = &self.line(body, run)[0];
        let now = word.load(Ordering::Relaxed);
        debug_assert!(now & 1 == 0, "changes do not nest");
        let odd = now & !0xffff_ffff | u64::from((now as u32).wrapping_add(1));
        word.store(odd, Ordering::Relaxed);
        // No store of the change itself may be visible before the odd version.
        fence(Ordering::Release);
    }

    /// Ends a change: the head becomes `head`, with the next version.
    #[inline]
    pub(crate) fn end(&self, body: &LineChunks, run: u32, head: &RunHead) {
        let line = self.line(body, run);
        let mut head = *head;
        head.set_version((line[0].load(Ordering::Relaxed) as u32).wrapping_add(1));
        debug_assert!(head.version() & 1 == 0, "begun before");
        for (word, new) in line.iter().zip(head.0).skip(1) {
            word.store(new, Ordering::Relaxed);
        }
        line[0].store(head.0[0], Ordering::Release);
    }

    /// Abandons the heads, perhaps between `begin` and `end`.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(1, Ordering::Relaxed);
    }

    /// Returns whether the heads are abandoned: then no reader waits for a change.
    pub(crate) fn abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed) == 1
    }

    fn line<'a>(&self, body: &'a LineChunks, run: u32) -> &'a [AtomicU64; LINE_WORDS] {
        self.find(body, run)
            .expect("the writer knows which runs there are")
    }
}
