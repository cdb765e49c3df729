//! Creation, growth and removal of runs.

use kv_blocks::SequenceHash;

use super::{RunHolder, RunNamespace, RunNode, TreeWriter, hashes};
use crate::{
    arena::LINE_WORDS,
    atomic::Ordering,
    lookup::SharedIndex,
    runs::{EXPECTED, Holders, NO_RUN, RunHead, SpeculativeBlocks, TierSpan, WHOLE},
    table::{BlockRef, NoFreeLines, RUN_BLOCKS, TableEntry, TableKey},
};

/// Number of runs on one block from which on it counts as a fork of prompts.
const FORK: u32 = 4;
/// Minimum blocks at once that come from a prompt, not from decoding.
const PROMPT: u32 = 4;
/// Distance in blocks at which a key's own line is prefetched.
const FAR: usize = 32;
/// Distance in blocks at which that line has arrived and names the other lines to prefetch.
const NEAR: usize = 14;

/// A known block that is not behind the parent of the event: a publisher that names blocks by hash
/// has a wrong chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainConflict;

impl TreeWriter {
    /// Returns the stretch of known blocks at the start of `rest` after `last` (`None`: from the
    /// root): its first block and its length. `None` if the first block is not known.
    pub(crate) fn locate(
        &mut self,
        core: &SharedIndex,
        space: u64,
        last: Option<BlockRef>,
        rest: &[SequenceHash],
    ) -> Result<Option<(BlockRef, u32)>, ChainConflict> {
        let Some(first) = rest.first() else {
            return Ok(None);
        };
        let follows = last
            .map(|last| BlockRef {
                run: last.run,
                at: last.at + 1,
            })
            .filter(|next| {
                let head = core.heads.get(&core.body, next.run);
                next.at < head.blocks()
                    && hashes(core, &head)[next.at as usize].load(Ordering::Relaxed) == first.0
            });
        let spot = match follows {
            Some(spot) => spot,
            None => match self.find(core, space, first.0) {
                Some(spot) if self.hangs(core, spot, last) => spot,
                Some(_) => return Err(ChainConflict),
                None => return Ok(None),
            },
        };
        let head = core.heads.get(&core.body, spot.run);
        let known = &hashes(core, &head)[spot.at as usize..];
        let most = known.len().min(rest.len());
        let same = |offset: usize| known[offset].load(Ordering::Relaxed) == rest[offset].0;
        // These hashes cover everything before them, so an equal last one means that all are equal.
        let equal = if same(most - 1) {
            most
        } else {
            let (mut low, mut high) = (1, most - 1);
            while low < high {
                let middle = usize::midpoint(low, high);
                if same(middle) {
                    low = middle + 1
                } else {
                    high = middle
                }
            }
            low
        };
        Ok(Some((spot, equal as u32)))
    }

    fn hangs(&self, core: &SharedIndex, spot: BlockRef, last: Option<BlockRef>) -> bool {
        let head = core.heads.get(&core.body, spot.run);
        let before = if spot.at > 0 {
            Some(BlockRef {
                run: spot.run,
                at: spot.at - 1,
            })
        } else if head.parent() == NO_RUN {
            None
        } else {
            Some(BlockRef {
                run: head.parent(),
                at: head.attach() - 1,
            })
        };
        before == last
    }

    /// Makes new blocks after `last`, held by `holder`; returns the first, and how many were made:
    /// at least one, and fewer than requested if a run is full.
    pub(crate) fn make(
        &mut self,
        core: &SharedIndex,
        home: RunNamespace,
        last: Option<BlockRef>,
        rest: &[SequenceHash],
        holder: RunHolder,
    ) -> Result<(BlockRef, u32), NoFreeLines> {
        if let (Some(last), RunHolder::Confirmed { slot, tier: 0 }) = (last, holder) {
            let head = core.heads.get(&core.body, last.run);
            let at_end = last.at + 1 == head.blocks() && head.blocks() < longest(core);
            if at_end
                && !head.has_area()
                && head.inline_holders() == 1
                && head.holder(0) == (slot, WHOLE)
                && let Ok(made) = self.extend(core, home, last.run, rest)
            {
                return Ok(made);
            }
        }
        self.make_run(core, home, last, rest, |holders, count| match holder {
            RunHolder::Confirmed { slot, tier } => {
                holders.cover(slot, tier, 0, count);
            }
            RunHolder::Expected {
                slot,
                expires,
                stamp,
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
                    stamp,
                });
            }
        })
    }

    /// Makes a run of new blocks after `last`; `hold` gets their number and enters the holders.
    pub(super) fn make_run(
        &mut self,
        core: &SharedIndex,
        home: RunNamespace,
        last: Option<BlockRef>,
        rest: &[SequenceHash],
        hold: impl FnOnce(&mut Holders, u32),
    ) -> Result<(BlockRef, u32), NoFreeLines> {
        let rest = &rest[..rest.len().min(longest(core) as usize)];
        let count = rest.len() as u32;
        let lines = count.div_ceil(LINE_WORDS as u32);
        let run = self.take_run(core)?;
        let array = match self.take(core, lines) {
            Ok(array) => array,
            Err(NoFreeLines) => {
                self.free_runs.push(run);
                return Err(NoFreeLines);
            }
        };
        for (word, hash) in core
            .body
            .words(array, rest.len())
            .expect("just taken")
            .iter()
            .zip(rest)
        {
            word.store(hash.0, Ordering::Relaxed);
        }
        let first = TableEntry {
            key: core.marks.key(home.key, rest[0].0),
            spot: BlockRef { run, at: 0 },
        };
        if self.mark(core, first).is_err() {
            self.extents.give(&core.body, array, lines);
            self.free_runs.push(run);
            return Err(NoFreeLines);
        }
        let mut head = RunHead([0; LINE_WORDS]);
        head.set_blocks(count);
        head.0[3] = home.key;
        head.0[4] = rest[rest.len() - 1].0;
        head.set_hashes(array);
        if let Some(last) = last {
            let parent = core.heads.get(&core.body, last.run);
            head.set_parent(last.run, parent.parent(), last.at + 1);
            head.set_depth(parent.depth() + last.at + 1);
        } else {
            head.set_parent(NO_RUN, NO_RUN, 0);
        }
        self.holders.clear(count);
        hold(&mut self.holders, count);
        if self.write_holders(core, &mut head).is_err() {
            self.unmark(core, first);
            self.extents.give(&core.body, array, lines);
            self.free_runs.push(run);
            return Err(NoFreeLines);
        }
        core.heads.begin(&core.body, run);
        core.heads.end(&core.body, run, &head);
        self.nodes[run as usize] = RunNode {
            lines,
            space: Some(home.id),
            ..RunNode::default()
        };
        self.note_unheld(run, self.holders.unheld());
        if let Some(last) = last {
            self.join_parent(core, last);
        }
        self.touch(run);
        let made = self.enter(core, home.key, run, 0, rest);
        if made < count {
            // The table has no room for all of them: the run ends here.
            self.cut(core, run, made, made);
            if made == 0 {
                return Err(NoFreeLines);
            }
        }
        self.mark_end(core, home.key, BlockRef { run, at: made - 1 });
        Ok((BlockRef { run, at: 0 }, made))
    }

    /// Appends blocks to a run whose only holder has all of it.
    fn extend(
        &mut self,
        core: &SharedIndex,
        home: RunNamespace,
        run: u32,
        rest: &[SequenceHash],
    ) -> Result<(BlockRef, u32), NoFreeLines> {
        let mut head = core.heads.get(&core.body, run);
        let old = head.blocks();
        let rest = &rest[..rest.len().min((longest(core) - old) as usize)];
        let count = old + rest.len() as u32;
        let mut lines = self.nodes[run as usize].lines;
        let before = (head.hashes(), lines);
        let needed = count.div_ceil(LINE_WORDS as u32);
        let moved = needed > lines;
        let array = if moved {
            // An eighth more, so that a sequence that grows block by block is not copied each time.
            // Not if room is scarce.
            let ample = (needed + needed / 8 + u32::from(rest.len() == 1))
                .min(longest(core) / LINE_WORDS as u32);
            let (array, got) = match self.take(core, ample) {
                Ok(array) => (array, ample),
                Err(NoFreeLines) => (self.take(core, needed)?, needed),
            };
            lines = got;
            array
        } else {
            before.0
        };
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
        self.nodes[run as usize].lines = lines;
        self.touch(run);
        let made = self.enter(core, home.key, run, old, rest);
        if made < rest.len() as u32 {
            self.holders
                .read(&core.heads.get(&core.body, run), &core.body);
            self.cut(core, run, old + made, old + made);
            if made == 0 {
                return Err(NoFreeLines);
            }
        }
        if made >= PROMPT {
            let at = old + made - 1;
            self.mark_end(core, home.key, BlockRef { run, at });
        }
        Ok((BlockRef { run, at: old }, made))
    }

    /// Adds the table entries of blocks from `first` on; returns how many, up to the first one
    /// without room or already known: a publisher that names blocks by hash has a wrong chain.
    fn enter(
        &mut self,
        core: &SharedIndex,
        space: u64,
        run: u32,
        first: u32,
        blocks: &[SequenceHash],
    ) -> u32 {
        let mut keys = KeyPrefetch::new(core, blocks.len(), |number| {
            core.table.key(space, blocks[number].0)
        });
        for (number, block) in blocks.iter().enumerate() {
            let key = keys.next(core, number);
            let spot = BlockRef {
                run,
                at: first + number as u32,
            };
            let known = |other| {
                let mut head = RunHead::NONE;
                core.block_at(space, block.0, other, &mut head)
            };
            if self.insert(core, TableEntry { key, spot }, known).is_err() {
                return number as u32;
            }
        }
        blocks.len() as u32
    }

    /// Frees the blocks at the end of `run` that have no holder and no child, and those of the runs
    /// before it likewise. `holders` has the run's holders. `gone` gets every freed block.
    pub(crate) fn trim(&mut self, core: &SharedIndex, run: u32, gone: &mut dyn FnMut(FreedBlocks)) {
        let mut run = run;
        loop {
            let head = core.heads.get(&core.body, run);
            let held = self.holders.reach();
            let hung = if self.nodes[run as usize].children == 0 {
                0
            } else {
                self.children
                    .range((run, 0)..=(run, u32::MAX))
                    .next_back()
                    .map_or(0, |((_, attach), _)| *attach)
            };
            let pinned = self
                .pin
                .filter(|pin| pin.run == run)
                .map_or(0, |pin| pin.at + 1);
            self.pin_kept |= pinned > held.max(hung);
            let keep = held.max(hung).max(pinned);
            if keep >= head.blocks() {
                return;
            }
            let space = self.nodes[run as usize].space;
            gone(FreedBlocks {
                run,
                from: keep,
                to: head.blocks(),
                space: space.filter(|_| keep == 0),
            });
            self.cut(core, run, keep, head.blocks());
            if keep > 0 || head.parent() == NO_RUN {
                return;
            }
            run = head.parent();
            let parent = core.heads.get(&core.body, run);
            self.holders.read(&parent, &core.body);
        }
    }

    /// Shortens a run to `keep` blocks, of which those before `entered` are in the table. `holders`
    /// has its holders.
    pub(super) fn cut(&mut self, core: &SharedIndex, run: u32, keep: u32, entered: u32) {
        let mut head = core.heads.get(&core.body, run);
        let known = hashes(core, &head);
        let space = head.space();
        let leaving = &known[keep as usize..entered as usize];
        let mut keys = KeyPrefetch::new(core, leaving.len(), |number| {
            core.table
                .key(space, leaving[number].load(Ordering::Relaxed))
        });
        for number in 0..leaving.len() {
            let key = keys.next(core, number);
            let spot = BlockRef {
                run,
                at: keep + number as u32,
            };
            let entry = TableEntry { key, spot };
            core.table
                .remove(&mut self.fill, &core.body, &mut self.extents, entry);
        }
        self.blocks -= u64::from(entered - keep);
        self.unmark_ends(core, space, run, keep);
        if keep == 0 {
            let key = core.marks.key(space, known[0].load(Ordering::Relaxed));
            let spot = BlockRef { run, at: 0 };
            self.unmark(core, TableEntry { key, spot });
        }
        let lines = self.nodes[run as usize].lines;
        core.heads.begin(&core.body, run);
        if keep == 0 {
            self.note_unheld(run, 0);
            if head.has_area() {
                let (line, words) = head.area();
                self.extents.give(&core.body, line, lines_of(words));
            }
            core.heads.end(&core.body, run, &RunHead([0; LINE_WORDS]));
            self.extents.give(&core.body, head.hashes(), lines);
            self.nodes[run as usize] = RunNode::default();
            self.free_runs.push(run);
            self.leave_parent(core, &head);
            return;
        }
        let needed = keep.div_ceil(LINE_WORDS as u32);
        head.0[4] = known[keep as usize - 1].load(Ordering::Relaxed);
        head.set_blocks(keep);
        self.holders.set_blocks(keep);
        // Fewer blocks need no more words than before, so there is room.
        let _ = self.write_holders(core, &mut head);
        core.heads.end(&core.body, run, &head);
        self.extents
            .give(&core.body, head.hashes() + needed, lines - needed);
        self.nodes[run as usize].lines = needed;
        self.note_unheld(run, self.holders.unheld());
    }

    fn join_parent(&mut self, core: &SharedIndex, last: BlockRef) {
        self.nodes[last.run as usize].children += 1;
        if self.nodes[last.run as usize].children == 1 {
            self.say_children(core, last.run, true);
        }
        let alike = self.children.entry((last.run, last.at + 1)).or_insert(0);
        *alike += 1;
        if *alike >= FORK {
            let head = core.heads.get(&core.body, last.run);
            self.forks.record(core, head.depth() + last.at + 1);
            self.mark_end(core, head.space(), last);
        }
    }

    /// Sets the flag by which readers know whether a run has children.
    fn say_children(&self, core: &SharedIndex, run: u32, any: bool) {
        let mut head = core.heads.get(&core.body, run);
        head.set_children(any);
        core.heads.begin(&core.body, run);
        core.heads.end(&core.body, run, &head);
    }

    fn leave_parent(&mut self, core: &SharedIndex, head: &RunHead) {
        if head.parent() == NO_RUN {
            return;
        }
        self.nodes[head.parent() as usize].children -= 1;
        if self.nodes[head.parent() as usize].children == 0 {
            self.say_children(core, head.parent(), false);
        }
        let place = (head.parent(), head.attach());
        if let Some(count) = self.children.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.children.remove(&place);
            }
        }
    }
}

/// Keys of many blocks, with their lines prefetched some steps ahead of their use.
struct KeyPrefetch<F> {
    keys: [TableKey; FAR],
    count: usize,
    key: F,
}

impl<F: Fn(usize) -> TableKey> KeyPrefetch<F> {
    fn new(core: &SharedIndex, count: usize, key: F) -> Self {
        let mut ahead = Self {
            keys: [TableKey::NONE; FAR],
            count,
            key,
        };
        (0..count.min(FAR)).for_each(|number| ahead.ask(core, number));
        (0..count.min(NEAR))
            .for_each(|number| core.table.prefetch_further(&core.body, ahead.keys[number]));
        ahead
    }

    #[inline]
    fn ask(&mut self, core: &SharedIndex, number: usize) {
        let key = (self.key)(number);
        core.table.prefetch(&core.body, key);
        self.keys[number % FAR] = key;
    }

    /// Returns key `number`; the keys are taken in order.
    #[inline]
    fn next(&mut self, core: &SharedIndex, number: usize) -> TableKey {
        let key = self.keys[number % FAR];
        if number + FAR < self.count {
            self.ask(core, number + FAR);
        }
        if number + NEAR < self.count {
            core.table
                .prefetch_further(&core.body, self.keys[(number + NEAR) % FAR]);
        }
        key
    }
}

/// Blocks that left the structure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreedBlocks {
    pub(crate) run: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The namespace of a run that was freed as a whole.
    pub(crate) space: Option<crate::namespaces::NamespaceId>,
}

/// Returns the maximum number of blocks in a run. With the small chunks of a small budget a run
/// takes a quarter of a chunk.
fn longest(core: &SharedIndex) -> u32 {
    RUN_BLOCKS.min((LINE_WORDS as u32) << core.body.log2() >> 2)
}

/// Returns the number of lines for a number of words.
pub(super) fn lines_of(words: usize) -> u32 {
    words.div_ceil(LINE_WORDS) as u32
}
