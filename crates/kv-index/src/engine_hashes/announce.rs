//! Announcements: an engine names blocks.

use kv_blocks::{BlockSize, EngineHash};

use super::{
    AnnounceOutcome, BATCH, BlockRef, EngineHashTable, HashConflict, RUN_BLOCKS,
    hash_index::{HashSlot, HashTag},
    run_hashes::HashWriter,
};

/// Hashes below this prove nothing: two engines that number their blocks share small numbers by
/// chance.
const LONG_NAME: u64 = 1 << 32;

/// Returns whether two engines can share this hash only by content, not by chance.
pub(super) fn is_long(name: EngineHash) -> bool {
    name.0 >= LONG_NAME
}

/// One announcement in progress.
struct Announcement<'a> {
    names: &'a [EngineHash],
    /// The block of the first hash.
    first: BlockRef,
    run_hashes: u32,
    group: u32,
    size: BlockSize,
    /// Whether the member is alone in its group: then the newest hash is right.
    alone: bool,
    moved: Vec<BlockRef>,
    /// Blocks named by this announcement.
    wrote: Vec<u32>,
    /// Whether a long hash was already present.
    agreed: bool,
}

impl EngineHashTable {
    /// Records that a member's engine calls the blocks from `first` on by `names`; its blocks are
    /// of `size`. Records nothing if the member does not exist or may not announce that size.
    ///
    /// # Errors
    ///
    /// The hashes contradict those of the other members of the group. Then nothing has changed;
    /// after [`EngineHashTable::split_group`] the same announcement is accepted, or after one
    /// further split.
    pub(crate) fn announce(
        &mut self,
        member: u32,
        size: BlockSize,
        names: &[EngineHash],
        first: BlockRef,
    ) -> Result<AnnounceOutcome, HashConflict> {
        debug_assert!(
            first.at as usize + names.len() <= RUN_BLOCKS as usize,
            "{} blocks from {first:?} on in a run",
            names.len()
        );
        // Twice as fast as new hashes arrive, so that unused ones cannot accumulate.
        self.free_ended(2 * names.len());
        if names.is_empty() || !self.admits(member, size) {
            return Ok(AnnounceOutcome::default());
        }
        let Some(of) = self.groups.member(member) else {
            return Ok(AnnounceOutcome::default());
        };
        let (group, epoch) = (of.group, HashWriter::Epoch(of.epoch));
        let run_hashes = self.find_or_add_run_hashes(first.run, group, size);
        let writer = Some(self.run_hashes.get(run_hashes))
            .filter(|run_hashes| !run_hashes.is_empty())
            .map(|run_hashes| run_hashes.writer);
        let alone = self.groups.is_alone(group);
        let mut task = Announcement {
            names,
            first,
            run_hashes,
            group,
            size,
            alone,
            moved: Vec::new(),
            wrote: Vec::new(),
            agreed: false,
        };
        let taken = self.take(&mut task);
        if taken.is_err() {
            self.take_back(&task);
        } else {
            if !task.wrote.is_empty() {
                let own = writer.is_none_or(|writer| writer == epoch);
                self.run_hashes.change(run_hashes, |run_hashes| {
                    run_hashes.writer = if own { epoch } else { HashWriter::Several }
                });
            }
            let anothers =
                writer.is_some_and(|writer| writer != epoch && writer != HashWriter::Several);
            if task.agreed && anothers {
                self.groups.prove(member);
            }
        }
        let moved = self.moved_away(task);
        self.free_if_empty(run_hashes);
        taken.map(|()| AnnounceOutcome { moved })
    }

    /// Returns the blocks whose hashes an announcement gave to others, without those that it named
    /// again.
    fn moved_away(&self, task: Announcement<'_>) -> Vec<BlockRef> {
        let Announcement {
            mut moved,
            names,
            first,
            ..
        } = task;
        let run_hashes = self.run_hashes.get(task.run_hashes);
        let named_again = |block_ref: &BlockRef| {
            let line = block_ref.at.checked_sub(first.at);
            let name = line.and_then(|line| names.get(line as usize));
            block_ref.run == first.run
                && name.is_some_and(|name| run_hashes.has(block_ref.at, *name))
        };
        moved.retain(|block_ref| !named_again(block_ref));
        moved
    }

    fn take(&mut self, task: &mut Announcement<'_>) -> Result<(), HashConflict> {
        let (mut left, mut at) = (task.names, task.first.at);
        while !left.is_empty() {
            // Most announcements repeat one of another member: that needs a comparison and no
            // search.
            let agreed = self.run_hashes.get(task.run_hashes).agrees(at, left);
            let (known, rest) = left.split_at(agreed);
            task.agreed = task.agreed || known.iter().copied().any(is_long);
            let (batch, rest) = rest.split_at(rest.len().min(BATCH));
            at += count(known);
            let keys = self.keys(task.group, task.size, batch);
            let blocks = at..at + count(rest) + count(batch);
            self.run_hashes
                .change(task.run_hashes, |run_hashes| run_hashes.reserve(&blocks));
            let new = self.take_new(task, &keys, at, batch);
            for ((name, key), at) in batch.iter().zip(keys).zip(at..).skip(new) {
                self.take_one(task, key, at, *name)?;
            }
            at += count(batch);
            left = rest;
        }
        Ok(())
    }

    /// Records new hashes of new blocks at the end of the run's hashes, the case of nearly all
    /// announcements that are not repetitions. Returns the number of accepted hashes.
    fn take_new(
        &mut self,
        task: &mut Announcement<'_>,
        keys: &[HashTag],
        at: u32,
        names: &[EngineHash],
    ) -> usize {
        if !self
            .run_hashes
            .change(task.run_hashes, |run_hashes| run_hashes.append(at, names))
        {
            return 0;
        }
        let mut new = 0;
        for ((name, key), at) in names.iter().zip(keys).zip(at..) {
            if self.find(*key, task.group, task.size, *name).is_some() {
                self.run_hashes
                    .change(task.run_hashes, |run_hashes| run_hashes.cut(at));
                break;
            }
            self.table.insert(
                *key,
                HashSlot {
                    run_hashes: task.run_hashes,
                    at,
                },
            );
            new += 1;
        }
        task.wrote.extend(at..at + count(&names[..new]));
        new
    }

    fn take_one(
        &mut self,
        task: &mut Announcement<'_>,
        key: HashTag,
        at: u32,
        name: EngineHash,
    ) -> Result<(), HashConflict> {
        let run_hashes = self.run_hashes.get(task.run_hashes);
        if run_hashes.has(at, name) {
            task.agreed = task.agreed || is_long(name);
            return Ok(());
        }
        let contradiction = HashConflict {
            name,
            block_ref: BlockRef {
                run: run_hashes.run,
                at,
            },
        };
        if !task.alone && run_hashes.is_named(at) {
            return Err(contradiction);
        }
        if let Some(other) = self.find(key, task.group, task.size, name) {
            if !task.alone {
                return Err(contradiction);
            }
            task.moved.push(BlockRef {
                run: self.run_hashes.get(other.run_hashes).run,
                at: other.at,
            });
            self.erase(key, other, name);
            if other.run_hashes != task.run_hashes {
                self.free_if_empty(other.run_hashes);
            }
        }
        self.write(
            key,
            HashSlot {
                run_hashes: task.run_hashes,
                at,
            },
            name,
        );
        task.wrote.push(at);
        Ok(())
    }

    /// Erases the hashes of a refused announcement; the blocks had none before.
    fn take_back(&mut self, task: &Announcement<'_>) {
        for at in task.wrote.iter().rev() {
            let name = task.names[(at - task.first.at) as usize];
            self.erase(
                self.key(task.group, task.size, name),
                HashSlot {
                    run_hashes: task.run_hashes,
                    at: *at,
                },
                name,
            );
        }
    }
}

fn count(names: &[EngineHash]) -> u32 {
    u32::try_from(names.len()).expect("an announcement is within a run")
}
