//! Parts of the protocol: reused memory, and the table.

use std::sync::Arc;

use loom::thread;

use super::{PLAIN, SPACE, chain, check};
use crate::{
    arena::{Extents, LineChunks},
    atomic::{Mutex, Ordering, fence},
    runs::{RunHead, RunHeads},
    table::{BlockRef, BlockTable, HomeLine, TableEntry, TableFill, TableKey},
};

/// One run with an array of eight blocks, without a table.
struct SmallRun {
    lines: Arc<LineChunks>,
    heads: Arc<RunHeads>,
    extents: Extents,
    head: RunHead,
}

impl SmallRun {
    fn new() -> Self {
        let lines = Arc::new(LineChunks::new(1, 3));
        let mut extents = Extents::new(3);
        extents.grow(&lines);
        let mut small = Self {
            heads: Arc::new(RunHeads::new(2, 0)),
            extents,
            lines,
            head: RunHead::NONE,
        };
        small.head.set_blocks(8);
        let array = small.line_of(1);
        small.head.set_hashes(array);
        let slab = small.line_of(0);
        small.open(0, slab);
        small
    }

    /// Returns a line whose words all have a value.
    fn line_of(&mut self, value: u64) -> u32 {
        let line = self.extents.take(&self.lines, 1).unwrap();
        self.lines
            .line(line)
            .unwrap()
            .iter()
            .for_each(|word| word.store(value, Ordering::Relaxed));
        line
    }

    /// Uses a line of zeros as the slab of one run.
    fn open(&self, run: u32, slab: u32) {
        self.heads.add(run, slab);
        self.heads.begin(&self.lines, run);
        self.heads.end(&self.lines, run, &self.head);
    }

    /// Moves the run's blocks to another array.
    fn relocate(&mut self) {
        let old = self.head.hashes();
        let new = self.line_of(1);
        self.heads.begin(&self.lines, 0);
        self.head.set_hashes(new);
        self.heads.end(&self.lines, 0, &self.head);
        self.extents.give(&self.lines, old, 1);
    }
}

#[test]
fn lines_freed_by_one_thread_and_taken_by_another_are_not_read_as_their_old_content() {
    check(3, || {
        let small = SmallRun::new();
        let (lines, heads, old) = (
            Arc::clone(&small.lines),
            Arc::clone(&small.heads),
            small.head.hashes(),
        );
        let writers = Arc::new(Mutex::new(small));
        let second = Arc::clone(&writers);
        loom::explore();
        let reader = thread::spawn(move || {
            let mut head = RunHead::NONE;
            assert!(heads.read(&lines, 0, &mut head));
            let array = lines.line(head.hashes()).unwrap();
            let seen = [0, 3].map(|at: usize| array[at].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            assert!(
                seen == [1; 2] || !heads.unchanged(&lines, 0, &head),
                "{seen:?}"
            );
        });
        let other = thread::spawn(move || {
            let mut small = second.lock();
            if small.head.hashes() != old {
                assert_eq!(small.line_of(2), old, "the line is used again");
            }
        });
        writers.lock().relocate();
        reader.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn a_head_in_a_new_slab_has_the_written_value_and_not_old_words() {
    check(3, || {
        let mut small = SmallRun::new();
        // Free lines form lists: the words of this line now look like a head of an even version.
        let [other, between, line, _behind] = [(); 4].map(|()| small.line_of(0));
        small.extents.give(&small.lines, other, 1);
        small.extents.give(&small.lines, line, 1);
        assert!(other % 2 == 0 && other < between && between < line);
        let (lines, heads) = (Arc::clone(&small.lines), Arc::clone(&small.heads));
        loom::explore();
        let reader = thread::spawn(move || {
            let mut head = RunHead::NONE;
            if heads.read(&lines, 1, &mut head) && head.blocks() > 0 {
                assert!((head.blocks(), head.tail()) == (8, 5), "{head:?}");
            }
        });
        small.head.0[4] = 5;
        let slab = small.line_of(0);
        assert_eq!(slab, line, "the line is used again");
        small.open(1, slab);
        reader.join().unwrap();
    });
}

/// A table and its writer's data.
struct SmallTable {
    lines: Arc<LineChunks>,
    table: Arc<BlockTable>,
    extents: Extents,
    fill: TableFill,
}

impl SmallTable {
    fn new() -> Self {
        let lines = Arc::new(LineChunks::new(1, 3));
        let mut extents = Extents::new(3);
        extents.grow(&lines);
        let table = BlockTable::new(1, PLAIN);
        Self {
            lines,
            extents,
            fill: TableFill::new(&table),
            table: Arc::new(table),
        }
    }

    fn insert(&mut self, at: u32) {
        let entry = entry(&self.table, at);
        let Self { fill, extents, .. } = self;
        self.table
            .insert(fill, &self.lines, extents, entry, |_| false)
            .unwrap();
    }

    fn remove(&mut self, at: u32) {
        let entry = entry(&self.table, at);
        self.table
            .remove(&mut self.fill, &self.lines, &mut self.extents, entry);
    }

    /// Fills the table until the next key makes its segment move to other lines; returns that key.
    fn fill_up(&mut self) -> u32 {
        let mut scratch = Self::new();
        let state = |small: &Self| small.table.state(key(&small.table, 0));
        scratch.insert(0);
        let before = state(&scratch);
        let next = (1..).find(|at| {
            scratch.insert(*at);
            state(&scratch) != before
        });
        let next = next.unwrap();
        (0..next).for_each(|at| self.insert(at));
        next
    }

    /// Reuses all free lines, with words that look like empty slots.
    fn reuse(&mut self) {
        while let Some(line) = self.extents.take(&self.lines, 1) {
            let words = self.lines.line(line).unwrap();
            words[..3]
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }
}

fn entry(table: &BlockTable, at: u32) -> TableEntry {
    TableEntry {
        key: key(table, at),
        block_ref: BlockRef { run: 0, at },
    }
}

fn key(table: &BlockTable, at: u32) -> TableKey {
    table.key(SPACE, chain(1, 64)[at as usize].0)
}

/// Asserts that both kinds of search find a key that is present throughout.
fn assert_found(table: &BlockTable, lines: &LineChunks, at: u32) {
    let key = key(table, at);
    let state = table.state(key);
    let line = table.touch(lines, key, state);
    assert_ne!(table.peek(lines, key, state, line), HomeLine::Nothing);
    let found = table.find(lines, key, |block_ref| {
        (block_ref == BlockRef { run: 0, at }).then_some(())
    });
    assert!(found.is_some());
}

#[test]
fn an_unchanged_key_is_found_while_its_segment_grows_and_its_lines_are_reused() {
    check(2, || {
        let mut small = SmallTable::new();
        let next = small.fill_up();
        let (table, lines) = (Arc::clone(&small.table), Arc::clone(&small.lines));
        loom::explore();
        let reader = thread::spawn(move || assert_found(&table, &lines, 1));
        small.insert(next);
        small.reuse();
        reader.join().unwrap();
    });
}

#[test]
fn an_unchanged_key_is_found_while_others_change_in_its_line() {
    check(2, || {
        let mut small = SmallTable::new();
        (0..3).for_each(|at| small.insert(at));
        let (table, lines) = (Arc::clone(&small.table), Arc::clone(&small.lines));
        loom::explore();
        let reader = thread::spawn(move || assert_found(&table, &lines, 1));
        small.remove(0);
        small.insert(3);
        small.remove(2);
        reader.join().unwrap();
    });
}
