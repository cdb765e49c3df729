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
    sheet: u32,
    family: u32,
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
        let (family, stint) = (of.family, HashWriter::Stint(of.stint));
        let sheet = self.sheet(first.run, family, size);
        let author = Some(self.run_hashes.get(sheet))
            .filter(|sheet| !sheet.is_empty())
            .map(|sheet| sheet.author);
        let alone = self.groups.is_alone(family);
        let mut task = Announcement {
            names,
            first,
            sheet,
            family,
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
                let own = author.is_none_or(|author| author == stint);
                self.run_hashes.change(sheet, |sheet| {
                    sheet.author = if own { stint } else { HashWriter::Several }
                });
            }
            let anothers =
                author.is_some_and(|author| author != stint && author != HashWriter::Several);
            if task.agreed && anothers {
                self.groups.prove(member);
            }
        }
        let moved = self.moved_away(task);
        self.free_if_empty(sheet);
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
        let sheet = self.run_hashes.get(task.sheet);
        let named_again = |spot: &BlockRef| {
            let line = spot.at.checked_sub(first.at);
            let name = line.and_then(|line| names.get(line as usize));
            spot.run == first.run && name.is_some_and(|name| sheet.has(spot.at, *name))
        };
        moved.retain(|spot| !named_again(spot));
        moved
    }

    fn take(&mut self, task: &mut Announcement<'_>) -> Result<(), HashConflict> {
        let (mut left, mut at) = (task.names, task.first.at);
        while !left.is_empty() {
            // Most announcements repeat one of another member: that needs a comparison and no
            // search.
            let agreed = self.run_hashes.get(task.sheet).agrees(at, left);
            let (known, rest) = left.split_at(agreed);
            task.agreed = task.agreed || known.iter().copied().any(is_long);
            let (batch, rest) = rest.split_at(rest.len().min(BATCH));
            at += count(known);
            let keys = self.keys(task.family, task.size, batch);
            let blocks = at..at + count(rest) + count(batch);
            self.run_hashes
                .change(task.sheet, |sheet| sheet.reserve(&blocks));
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
            .change(task.sheet, |sheet| sheet.append(at, names))
        {
            return 0;
        }
        let mut new = 0;
        for ((name, key), at) in names.iter().zip(keys).zip(at..) {
            if self.find(*key, task.family, task.size, *name).is_some() {
                self.run_hashes.change(task.sheet, |sheet| sheet.cut(at));
                break;
            }
            self.table.insert(
                *key,
                HashSlot {
                    sheet: task.sheet,
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
        let sheet = self.run_hashes.get(task.sheet);
        if sheet.has(at, name) {
            task.agreed = task.agreed || is_long(name);
            return Ok(());
        }
        let contradiction = HashConflict {
            name,
            spot: BlockRef { run: sheet.run, at },
        };
        if !task.alone && sheet.is_named(at) {
            return Err(contradiction);
        }
        if let Some(other) = self.find(key, task.family, task.size, name) {
            if !task.alone {
                return Err(contradiction);
            }
            task.moved.push(BlockRef {
                run: self.run_hashes.get(other.sheet).run,
                at: other.at,
            });
            self.erase(key, other, name);
            if other.sheet != task.sheet {
                self.free_if_empty(other.sheet);
            }
        }
        self.write(
            key,
            HashSlot {
                sheet: task.sheet,
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
                self.key(task.family, task.size, name),
                HashSlot {
                    sheet: task.sheet,
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
