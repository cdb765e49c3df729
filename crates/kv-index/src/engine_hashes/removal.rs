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
        for run_hashes in self.run_hashes.of_run(run).collect::<Vec<_>>() {
            let blocks = self.run_hashes.get(run_hashes).within(&range);
            self.erase_all(run_hashes, blocks);
            self.free_if_empty(run_hashes);
        }
    }

    /// Removes one hash of a member that is alone in its group; other members may still need it.
    /// For hashes of blocks that the member does not hold any more.
    pub(crate) fn remove_hash(&mut self, member: u32, name: EngineHash, size: BlockSize) {
        let Some(group) = self.groups.member(member).map(|member| member.group) else {
            return;
        };
        let key = self.key(group, size, name);
        if self.groups.is_alone(group)
            && let Some(slot) = self.find(key, group, size, name)
        {
            self.erase(key, slot, name);
            self.free_if_empty(slot.run_hashes);
        }
    }

    /// Removes the hashes of a run's blocks from the group of a member that is alone there. For
    /// blocks that it does not hold: hashes of other members or of earlier times are not its own.
    pub(crate) fn unlink(&mut self, member: u32, run: u32, range: &Range<u32>) {
        let Some(group) = self.groups.member(member).map(|member| member.group) else {
            return;
        };
        if self.groups.is_alone(group)
            && let Some(run_hashes) = self.run_hashes.find(run, group)
        {
            let blocks = self.run_hashes.get(run_hashes).within(range);
            self.erase_all(run_hashes, blocks);
            self.free_if_empty(run_hashes);
        }
    }

    /// Returns whether a member is alone in its group, and blocks of the run have hashes there.
    pub(crate) fn may_unlink(&self, member: u32, run: u32) -> bool {
        let group = self.groups.member(member).map(|member| member.group);
        group.is_some_and(|group| {
            self.groups.is_alone(group) && self.run_hashes.find(run, group).is_some()
        })
    }

    pub(super) fn erase(&mut self, key: HashTag, slot: HashSlot, name: EngineHash) {
        if self.run_hashes.change(slot.run_hashes, |run_hashes| {
            run_hashes.erase(slot.at, name)
        }) {
            self.table.remove(key, slot);
        }
    }

    /// Erases all hashes of some blocks, the last first: then the lines are freed from the end.
    fn erase_all(&mut self, run_hashes: u32, blocks: Range<u32>) {
        let (group, size) = (
            self.run_hashes.get(run_hashes).group,
            self.run_hashes.get(run_hashes).size,
        );
        let names = blocks.flat_map(|at| {
            self.run_hashes
                .get(run_hashes)
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
            let keys = self.keys(group, size, &hashes[..batch.len()]);
            for ((at, name), key) in batch.iter().zip(keys) {
                self.erase(
                    key,
                    HashSlot {
                        run_hashes,
                        at: *at,
                    },
                    *name,
                );
            }
        }
    }

    pub(super) fn free_if_empty(&mut self, number: u32) {
        if !self.run_hashes.get(number).is_empty() {
            return;
        }
        let run_hashes = self.run_hashes.remove(number);
        if let Some(moved) = self
            .groups
            .detach_run_hashes(run_hashes.group, run_hashes.filed)
        {
            self.run_hashes
                .change(moved, |moved| moved.filed = run_hashes.filed);
        }
    }

    pub(super) fn free_ended(&mut self, most: usize) -> bool {
        let mut room = u32::try_from(most).unwrap_or(u32::MAX);
        while let Some(run_hashes) = self.groups.next_unused_run_hashes() {
            let mut blocks = self.run_hashes.get(run_hashes).within(&(0..RUN_BLOCKS));
            blocks.start = blocks.start.max(blocks.end.saturating_sub(room.max(1)));
            room = room.saturating_sub(blocks.end - blocks.start);
            self.erase_all(run_hashes, blocks);
            self.free_if_empty(run_hashes);
            if room == 0 {
                return true;
            }
        }
        false
    }
}
