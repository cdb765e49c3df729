//! Removes engine hashes.

use std::{cmp::Reverse, ops::Range};

use kv_blocks::{BlockSize, EngineHash};

use super::{
    BATCH, EngineHashTable,
    hash_index::{HashSlot, HashTag, RUN_BLOCKS},
};

impl EngineHashTable {
    /// Removes all hashes of blocks that left the structure.
    pub(crate) fn forget(&mut self, run: u32, range: Range<u32>) {
        for sheet in self.run_hashes.of_run(run).collect::<Vec<_>>() {
            let blocks = self.run_hashes.get(sheet).within(&range);
            self.erase_all(sheet, blocks);
            self.free_if_empty(sheet);
        }
    }

    /// Removes one hash of a member that is alone in its group; other members may still need it.
    /// For hashes of blocks that the member does not hold any more.
    pub(crate) fn remove_hash(&mut self, member: u32, name: EngineHash, size: BlockSize) {
        let Some(family) = self.groups.member(member).map(|member| member.family) else {
            return;
        };
        let key = self.key(family, size, name);
        if self.groups.is_alone(family)
            && let Some(place) = self.find(key, family, size, name)
        {
            self.erase(key, place, name);
            self.free_if_empty(place.sheet);
        }
    }

    /// Removes the hashes of a run's blocks from the group of a member that is alone there. For
    /// blocks that it does not hold: hashes of other members or of earlier times are not its own.
    pub(crate) fn unlink(&mut self, member: u32, run: u32, range: &Range<u32>) {
        let Some(family) = self.groups.member(member).map(|member| member.family) else {
            return;
        };
        if self.groups.is_alone(family)
            && let Some(sheet) = self.run_hashes.find(run, family)
        {
            let blocks = self.run_hashes.get(sheet).within(range);
            self.erase_all(sheet, blocks);
            self.free_if_empty(sheet);
        }
    }

    /// Returns whether a member is alone in its group, and blocks of the run have hashes there.
    pub(crate) fn may_unlink(&self, member: u32, run: u32) -> bool {
        let family = self.groups.member(member).map(|member| member.family);
        family.is_some_and(|family| {
            self.groups.is_alone(family) && self.run_hashes.find(run, family).is_some()
        })
    }

    pub(super) fn erase(&mut self, key: HashTag, place: HashSlot, name: EngineHash) {
        if self
            .run_hashes
            .change(place.sheet, |sheet| sheet.erase(place.at, name))
        {
            self.table.remove(key, place);
        }
    }

    /// Erases all hashes of some blocks, the last first: then the lines are freed from the end.
    fn erase_all(&mut self, sheet: u32, blocks: Range<u32>) {
        let (family, size) = (
            self.run_hashes.get(sheet).family,
            self.run_hashes.get(sheet).size,
        );
        let names = blocks.flat_map(|at| {
            self.run_hashes
                .get(sheet)
                .names(at)
                .map(move |name| (at, name))
        });
        let mut names: Vec<_> = names.collect();
        names.sort_by_key(|(at, _)| Reverse(*at));
        for batch in names.chunks(BATCH) {
            let mut hashes = [EngineHash(0); BATCH];
            for (hash, (_, name)) in hashes.iter_mut().zip(batch) {
                *hash = *name;
            }
            let keys = self.keys(family, size, &hashes[..batch.len()]);
            for ((at, name), key) in batch.iter().zip(keys) {
                self.erase(key, HashSlot { sheet, at: *at }, *name);
            }
        }
    }

    pub(super) fn free_if_empty(&mut self, number: u32) {
        if !self.run_hashes.get(number).is_empty() {
            return;
        }
        let sheet = self.run_hashes.remove(number);
        if let Some(moved) = self.groups.detach_run_hashes(sheet.family, sheet.filed) {
            self.run_hashes
                .change(moved, |moved| moved.filed = sheet.filed);
        }
    }

    pub(super) fn free_ended(&mut self, most: usize) -> bool {
        let mut room = u32::try_from(most).unwrap_or(u32::MAX);
        while let Some(sheet) = self.groups.next_unused_run_hashes() {
            let mut blocks = self.run_hashes.get(sheet).within(&(0..RUN_BLOCKS));
            blocks.start = blocks.start.max(blocks.end.saturating_sub(room.max(1)));
            room = room.saturating_sub(blocks.end - blocks.start);
            self.erase_all(sheet, blocks);
            self.free_if_empty(sheet);
            if room == 0 {
                return true;
            }
        }
        false
    }
}
