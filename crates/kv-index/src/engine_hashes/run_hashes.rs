//! The engine hashes of one run's blocks in one group.

use std::ops::Range;

use kv_blocks::{BlockSize, EngineHash};

/// Maximum hashes of one block in one group, including those of its copies; beyond it the oldest of
/// `others` is dropped.
const MAX_NAMES: usize = 8;

/// Line of a block without a hash. A block with this very hash has it in `others`.
const NONE: u64 = 0;

/// Author of run hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HashWriter {
    /// One member, in one epoch of its membership.
    Epoch(u64),
    /// Several members, or unknown ones.
    Several,
}

/// The engine hashes of one run's blocks in one group.
#[derive(Debug)]
pub(super) struct RunHashes {
    pub(super) run: u32,
    pub(super) group: u32,
    pub(super) size: BlockSize,
    pub(super) writer: HashWriter,
    /// Index in the list of the group.
    pub(super) filed: u32,
    /// The block of the first line.
    first: u32,
    /// Number of hashes.
    count: u32,
    lines: Vec<u64>,
    /// Hashes beside the one in `lines`, by block and then in order of arrival. Bounded:
    /// [`MAX_NAMES`] a block.
    others: Vec<(u32, u64)>,
}

impl RunHashes {
    pub(super) fn new(run: u32, group: u32, size: BlockSize) -> Self {
        Self {
            run,
            group,
            size,
            writer: HashWriter::Several,
            filed: 0,
            first: 0,
            count: 0,
            lines: Vec::new(),
            others: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the heap bytes.
    pub(super) fn bytes(&self) -> u64 {
        (self.lines.capacity() * size_of::<u64>()
            + self.others.capacity() * size_of::<(u32, u64)>()) as u64
    }

    /// Returns whether the block has that hash.
    pub(super) fn has(&self, at: u32, name: EngineHash) -> bool {
        (name.0 != NONE && self.line(at) == name.0)
            || self.others[self.others_of(at)].contains(&(at, name.0))
    }

    /// Returns whether the block has any hash.
    pub(super) fn is_named(&self, at: u32) -> bool {
        self.line(at) != NONE || !self.others_of(at).is_empty()
    }

    /// Returns how many of the leading `names` are those of the blocks from `at` on.
    pub(super) fn agrees(&self, at: u32, names: &[EngineHash]) -> usize {
        let known = at
            .checked_sub(self.first)
            .and_then(|from| self.lines.get(from as usize..))
            .unwrap_or_default();
        known
            .iter()
            .zip(names)
            .take_while(|(line, name)| **line == name.0 && name.0 != NONE)
            .count()
    }

    /// Returns the hashes of a block.
    pub(super) fn names(&self, at: u32) -> impl Iterator<Item = EngineHash> {
        let line = Some(self.line(at)).filter(|line| *line != NONE);
        let others = self.others[self.others_of(at)]
            .iter()
            .map(|(_, name)| *name);
        line.into_iter().chain(others).map(EngineHash)
    }

    /// Returns the blocks of `range` that may have hashes.
    pub(super) fn within(&self, range: &Range<u32>) -> Range<u32> {
        let (from, to) = (self.others.first(), self.others.last());
        let from = from
            .map_or(self.first, |(at, _)| self.first.min(*at))
            .max(range.start);
        let to = to
            .map_or(self.end(), |(at, _)| self.end().max(at + 1))
            .min(range.end);
        from..to.max(from)
    }

    /// Returns the stretches of blocks with hashes in `lines`, then the other hashes one by one.
    pub(super) fn stretches(&self) -> impl Iterator<Item = (u32, Vec<EngineHash>)> {
        let mut at = self.first;
        let stretch = move |lines: &[u64]| {
            let from = at;
            at += u32::try_from(lines.len()).expect("a run is shorter than that") + 1;
            (
                from,
                lines.iter().copied().map(EngineHash).collect::<Vec<_>>(),
            )
        };
        let lines = self
            .lines
            .split(|line| *line == NONE)
            .map(stretch)
            .filter(|(_, names)| !names.is_empty());
        lines.chain(
            self.others
                .iter()
                .map(|(at, name)| (*at, vec![EngineHash(*name)])),
        )
    }

    /// Reserves lines.
    pub(super) fn reserve(&mut self, range: &Range<u32>) {
        if range.is_empty() {
            return;
        }
        if self.lines.is_empty() {
            self.first = range.start;
        }
        if let Some(missing) = self
            .first
            .checked_sub(range.start)
            .filter(|missing| *missing > 0)
        {
            self.lines.splice(0..0, (0..missing).map(|_| NONE));
            self.first = range.start;
        }
        let more = range.end.saturating_sub(self.end()) as usize;
        if self.lines.capacity() < self.lines.len() + more {
            // A quarter: there are many run hashes, and most are written once.
            self.lines.reserve_exact(more.max(self.lines.len() / 4));
        }
    }

    /// Appends hashes on new lines, if block `at` comes next, none of the blocks has a hash yet and
    /// all fit. Returns whether it did.
    pub(super) fn append(&mut self, at: u32, names: &[EngineHash]) -> bool {
        let at_end = at == self.end() && self.others.last().is_none_or(|(other, _)| *other < at);
        let fit = at_end && names.iter().all(|name| name.0 != NONE);
        if fit {
            self.lines.extend(names.iter().map(|name| name.0));
            self.count += u32::try_from(names.len()).expect("a run is shorter than that");
        }
        fit
    }

    /// Removes the lines from block `at` on, all of them just appended.
    pub(super) fn cut(&mut self, at: u32) {
        let lines = at.saturating_sub(self.first) as usize;
        self.count -= u32::try_from(self.lines.len().saturating_sub(lines))
            .expect("a run is shorter than that");
        self.lines.truncate(lines);
        self.trim();
    }

    /// Adds a hash, new in its group, to a block. Returns a hash that was dropped for it.
    pub(super) fn write(&mut self, at: u32, name: EngineHash) -> Option<EngineHash> {
        self.count += 1;
        if name.0 == NONE || self.line(at) != NONE {
            return self.write_other(at, name);
        }
        self.reserve(&(at..at + 1));
        let line = (at - self.first) as usize;
        if line >= self.lines.len() {
            self.lines.resize(line + 1, NONE);
        }
        self.lines[line] = name.0;
        None
    }

    fn write_other(&mut self, at: u32, name: EngineHash) -> Option<EngineHash> {
        let mut others = self.others_of(at);
        let mut displaced = None;
        if others.len() + 1 >= MAX_NAMES {
            displaced = Some(EngineHash(self.others.remove(others.start).1));
            others.end -= 1;
            self.count -= 1;
        }
        self.others.insert(others.end, (at, name.0));
        displaced
    }

    /// Removes a hash from a block. Returns whether the block had it.
    pub(super) fn erase(&mut self, at: u32, name: EngineHash) -> bool {
        if name.0 != NONE && self.line(at) == name.0 {
            self.lines[(at - self.first) as usize] = NONE;
            self.trim();
        } else {
            let others = self.others_of(at);
            let start = others.start;
            let Some(index) = self.others[others]
                .iter()
                .position(|(_, other)| *other == name.0)
            else {
                return false;
            };
            self.others.remove(start + index);
        }
        self.count -= 1;
        true
    }

    fn line(&self, at: u32) -> u64 {
        at.checked_sub(self.first)
            .and_then(|line| self.lines.get(line as usize))
            .copied()
            .unwrap_or(NONE)
    }

    fn others_of(&self, at: u32) -> Range<usize> {
        let from = self.others.partition_point(|(other, _)| *other < at);
        let count = self.others[from..]
            .iter()
            .take_while(|(other, _)| *other == at)
            .count();
        from..from + count
    }

    /// Returns the block behind the last line.
    fn end(&self) -> u32 {
        self.first + u32::try_from(self.lines.len()).expect("a run is shorter than that")
    }

    /// Removes lines without hashes at the end, and frees their memory if it is worth it.
    fn trim(&mut self) {
        while self.lines.last() == Some(&NONE) {
            self.lines.pop();
        }
        if self.lines.capacity() > 2 * self.lines.len() + 8 {
            self.lines
                .shrink_to(self.lines.len() + self.lines.len() / 4);
        }
    }
}
