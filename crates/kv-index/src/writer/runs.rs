//! Creation and growth of runs.

use kv_blocks::SequenceHash;

use super::{
    ChainPart, RunHolder, TreeWriter,
    key_prefetch::KeyPrefetch,
    tree_writer::{hashes, lines_of},
};
use crate::{
    arena::LINE_WORDS,
    atomic::Ordering,
    lookup::SharedIndex,
    runs::{BlockRange, EXPECTED, Holders, NO_RUN, RunHead, SpeculativeBlocks, TierSpan, WHOLE},
    table::{BlockRef, NoFreeLines, RUN_BLOCKS, TableEntry},
};

/// Number of runs on one block from which on it counts as a fork of prompts.
const FORK: u32 = 4;
/// Minimum blocks at once that come from a prompt, not from decoding.
const PROMPT: u32 = 4;

impl TreeWriter {
    /// Makes new blocks, held by `holder`; returns those that were made: at least one, and fewer
    /// than requested if a run is full.
    pub(crate) fn make(
        &mut self,
        core: &SharedIndex,
        part: ChainPart<'_>,
        holder: RunHolder,
    ) -> Result<BlockRange, NoFreeLines> {
        if let (Some(last), RunHolder::Confirmed { slot, tier: 0 }) = (part.parent, holder) {
            let head = core.heads.get(&core.body, last.run);
            let at_end = last.at + 1 == head.blocks() && head.blocks() < longest(core);
            if at_end
                && !head.has_area()
                && head.inline_holders() == 1
                && head.holder(0) == (slot, WHOLE)
                && let Ok(made) = self.extend(core, part.namespace.key, last.run, part.hashes)
            {
                return Ok(made);
            }
        }
        self.make_run(core, part, |holders, count| match holder {
            RunHolder::Confirmed { slot, tier } => {
                holders.cover(TierSpan {
                    slot,
                    tier,
                    start: 0,
                    end: count,
                });
            }
            RunHolder::Expected {
                slot,
                expires,
                generation,
            } => {
                let span = TierSpan {
                    slot,
                    tier: EXPECTED,
                    start: 0,
                    end: count,
                };
                holders.expected.push(SpeculativeBlocks {
                    span,
                    expires,
                    generation,
                });
            }
        })
    }

    /// Makes a run of new blocks; `add_holders` gets their number and enters the holders.
    pub(super) fn make_run(
        &mut self,
        core: &SharedIndex,
        part: ChainPart<'_>,
        add_holders: impl FnOnce(&mut Holders, u32),
    ) -> Result<BlockRange, NoFreeLines> {
        let hashes = &part.hashes[..part.hashes.len().min(longest(core) as usize)];
        let part = ChainPart { hashes, ..part };
        let run = self.take_run(core)?;
        let head = self
            .write_new_run(core, run, part, add_holders)
            .inspect_err(|NoFreeLines| self.nodes.end(run))?;
        self.changed.mark(run);
        core.heads.begin(&core.body, run);
        core.heads.end(&core.body, run, &head);
        self.nodes
            .begin(run, lines_of(hashes.len()), part.namespace.id);
        self.nodes.set_unheld(run, self.holders.unheld());
        if let Some(last) = part.parent {
            self.join_parent(core, last);
        }
        self.nodes.touch(run);
        let made = self.enter(core, part.namespace.key, BlockRef { run, at: 0 }, hashes);
        if made < head.blocks() {
            // The table has no room for all of them: the run ends here.
            self.cut(core, run, made, made);
            if made == 0 {
                return Err(NoFreeLines);
            }
        }
        let last = BlockRef { run, at: made - 1 };
        self.mark_end(core, part.namespace.key, last);
        Ok(BlockRange {
            run,
            start: 0,
            end: made,
        })
    }

    /// Writes the hashes and the holders of a new run and marks its first block; returns its head.
    /// An error changes nothing but `holders`.
    fn write_new_run(
        &mut self,
        core: &SharedIndex,
        run: u32,
        part: ChainPart<'_>,
        add_holders: impl FnOnce(&mut Holders, u32),
    ) -> Result<RunHead, NoFreeLines> {
        let lines = lines_of(part.hashes.len());
        let array = self.take(core, lines)?;
        let words = core.body.words(array, part.hashes.len());
        for (word, hash) in words.expect("just taken").iter().zip(part.hashes) {
            word.store(hash.0, Ordering::Relaxed);
        }
        let first = TableEntry {
            key: core.marks.key(part.namespace.key, part.hashes[0].0),
            block_ref: BlockRef { run, at: 0 },
        };
        if self.mark(core, first).is_err() {
            self.extents.give(&core.body, array, lines);
            return Err(NoFreeLines);
        }
        let mut head = new_head(core, part, array);
        self.holders.clear(head.blocks());
        add_holders(&mut self.holders, head.blocks());
        if self.write_holders(core, &mut head).is_err() {
            self.unmark(core, first);
            self.extents.give(&core.body, array, lines);
            return Err(NoFreeLines);
        }
        Ok(head)
    }

    /// Appends blocks to a run whose only holder has all of it.
    fn extend(
        &mut self,
        core: &SharedIndex,
        space: u64,
        run: u32,
        rest: &[SequenceHash],
    ) -> Result<BlockRange, NoFreeLines> {
        let mut head = core.heads.get(&core.body, run);
        let old = head.blocks();
        let rest = &rest[..rest.len().min((longest(core) - old) as usize)];
        let count = old + rest.len() as u32;
        let before = (head.hashes(), self.nodes.get(run).lines);
        let needed = lines_of(count as usize);
        let moved = needed > before.1;
        let (array, lines) = if moved {
            self.take_ample(core, needed, u32::from(rest.len() == 1))?
        } else {
            before
        };
        self.changed.mark(run);
        core.heads.begin(&core.body, run);
        let words = core
            .body
            .words(array, count as usize)
            .expect("just taken, or known to be there");
        if moved {
            for (word, known) in words.iter().zip(hashes(core, &head)) {
                word.store(known.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        for (word, hash) in words[old as usize..].iter().zip(rest) {
            word.store(hash.0, Ordering::Relaxed);
        }
        head.set_hashes(array);
        head.set_blocks(count);
        head.0[4] = rest[rest.len() - 1].0;
        core.heads.end(&core.body, run, &head);
        if moved {
            self.extents.give(&core.body, before.0, before.1);
        }
        self.nodes.set_lines(run, lines);
        self.nodes.touch(run);
        let made = self.enter(core, space, BlockRef { run, at: old }, rest);
        if made < rest.len() as u32 {
            self.holders
                .read(&core.heads.get(&core.body, run), &core.body);
            self.cut(core, run, old + made, old + made);
            if made == 0 {
                return Err(NoFreeLines);
            }
        }
        let end = old + made;
        if made >= PROMPT {
            self.mark_end(core, space, BlockRef { run, at: end - 1 });
        }
        Ok(BlockRange {
            run,
            start: old,
            end,
        })
    }

    /// Takes `needed` lines, and an eighth and `spare` more, so that a sequence that grows block by
    /// block is not copied each time; not if room is scarce. Returns the first line, and how many.
    fn take_ample(
        &mut self,
        core: &SharedIndex,
        needed: u32,
        spare: u32,
    ) -> Result<(u32, u32), NoFreeLines> {
        let ample = (needed + needed / 8 + spare).min(longest(core) / LINE_WORDS as u32);
        match self.take(core, ample) {
            Ok(array) => Ok((array, ample)),
            Err(NoFreeLines) => Ok((self.take(core, needed)?, needed)),
        }
    }

    /// Adds the table entries of blocks from `first` on; returns how many, up to the first one
    /// without room or already known: a publisher that names blocks by hash has a wrong chain.
    fn enter(
        &mut self,
        core: &SharedIndex,
        space: u64,
        first: BlockRef,
        blocks: &[SequenceHash],
    ) -> u32 {
        let mut keys = KeyPrefetch::new(core, blocks.len(), |number| {
            core.table.key(space, blocks[number].0)
        });
        for (number, block) in blocks.iter().enumerate() {
            let key = keys.next(core, number);
            let block_ref = BlockRef {
                run: first.run,
                at: first.at + number as u32,
            };
            let known = |other| {
                let mut head = RunHead::NONE;
                core.block_at(space, block.0, other, &mut head)
            };
            if self
                .insert(core, TableEntry { key, block_ref }, known)
                .is_err()
            {
                return number as u32;
            }
        }
        blocks.len() as u32
    }

    fn join_parent(&mut self, core: &SharedIndex, last: BlockRef) {
        let alike = self.nodes.add_child(last);
        if self.nodes.get(last.run).children == 1 {
            self.set_has_children(core, last.run, true);
        }
        if alike >= FORK {
            let head = core.heads.get(&core.body, last.run);
            self.forks.record(core, head.depth() + last.at + 1);
            self.mark_end(core, head.space(), last);
        }
    }

    /// Sets the flag by which readers know whether a run has children.
    pub(super) fn set_has_children(&self, core: &SharedIndex, run: u32, any: bool) {
        let mut head = core.heads.get(&core.body, run);
        head.set_children(any);
        core.heads.begin(&core.body, run);
        core.heads.end(&core.body, run, &head);
    }
}

/// Returns the head of a new run with hashes from line `array` on, without holders.
fn new_head(core: &SharedIndex, part: ChainPart<'_>, array: u32) -> RunHead {
    let mut head = RunHead([0; LINE_WORDS]);
    head.set_blocks(part.hashes.len() as u32);
    head.0[3] = part.namespace.key;
    head.0[4] = part.hashes[part.hashes.len() - 1].0;
    head.set_hashes(array);
    if let Some(last) = part.parent {
        let parent = core.heads.get(&core.body, last.run);
        head.set_parent(last.run, parent.parent(), last.at + 1);
        head.set_depth(parent.depth() + last.at + 1);
    } else {
        head.set_parent(NO_RUN, NO_RUN, 0);
    }
    head
}

/// Returns the maximum number of blocks in a run. With the small chunks of a small budget a run
/// takes a quarter of a chunk.
fn longest(core: &SharedIndex) -> u32 {
    RUN_BLOCKS.min((LINE_WORDS as u32) << core.body.log2() >> 2)
}
