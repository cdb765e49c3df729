//! Splits of hash groups, and their restoration from a snapshot.

use std::ops::Range;

use kv_blocks::EngineHash;

use super::{
    BATCH, EngineHashTable, GroupMembership, HashConflict, NamedStretch, announce::is_long,
    hash_index::HashSlot, run_hashes::HashWriter,
};

/// Maximum groups checked for one that a split member fits.
const CANDIDATES: usize = 4;

impl EngineHashTable {
    /// Moves a member that contradicted its group out of it, with the hashes of the blocks that it
    /// holds (`resident`: stretches of runs). The member joins a group that contradicts none of
    /// these hashes and has the refused hash; otherwise, and at every further split, it gets a
    /// group of its own, which no announcement of it contradicts.
    pub(crate) fn split_group(
        &mut self,
        member: u32,
        resident: impl IntoIterator<Item = (u32, Range<u32>)>,
        contradiction: HashConflict,
    ) {
        let Some(of) = self.groups.member(member) else {
            return;
        };
        let (old, epoch, parted) = (of.group, HashWriter::Epoch(of.epoch), of.split);
        let resident: Vec<_> = resident.into_iter().collect();
        let other = if parted {
            None
        } else {
            self.agreeing(old, &resident, contradiction)
        };
        let Some(group) = self.groups.move_to(member, other) else {
            return;
        };
        if let Some(of) = self.groups.member_mut(member) {
            of.split = true;
            of.proven = other.is_some() && is_long(contradiction.name);
        }
        for (run, range) in resident {
            let Some(run_hashes) = self
                .run_hashes
                .find(run, old)
                .map(|run_hashes| self.run_hashes.get(run_hashes))
            else {
                continue;
            };
            // Hashes of other authors are copied, but not as the member's own.
            let writer = if run_hashes.writer == epoch {
                epoch
            } else {
                HashWriter::Several
            };
            let size = run_hashes.size;
            let names: Vec<_> = run_hashes
                .within(&range)
                .flat_map(|at| run_hashes.names(at).map(move |name| (at, name)))
                .collect();
            let run_hashes = self.find_or_add_run_hashes(run, group, size);
            self.copy(run_hashes, &names, writer);
        }
    }

    /// Returns a group that has the hash refused by another one, and is consistent with the
    /// member's blocks.
    fn agreeing(
        &self,
        old: u32,
        resident: &[(u32, Range<u32>)],
        refused: HashConflict,
    ) -> Option<u32> {
        let stored = self
            .run_hashes
            .of_run(refused.block_ref.run)
            .map(|run_hashes| self.run_hashes.get(run_hashes));
        let naming_groups = stored
            .filter(|run_hashes| run_hashes.has(refused.block_ref.at, refused.name))
            .map(|run_hashes| run_hashes.group);
        let others = naming_groups.filter(|group| *group != old && self.groups.has_members(*group));
        others.take(CANDIDATES).find(|group| {
            resident
                .iter()
                .all(|(run, range)| self.agree(old, *group, *run, range))
        })
    }

    /// Returns whether the hashes of some blocks in group `one` contradict none in group `other`.
    fn agree(&self, one: u32, other: u32, run: u32, range: &Range<u32>) -> bool {
        let run_hashes = |group| {
            self.run_hashes
                .find(run, group)
                .map(|run_hashes| self.run_hashes.get(run_hashes))
        };
        let Some(hashes_of_one) = run_hashes(one) else {
            return true;
        };
        let (hashes_of_other, size) = (run_hashes(other), hashes_of_one.size);
        hashes_of_one.within(range).all(|at| {
            let same = |name| hashes_of_other.is_some_and(|run_hashes| run_hashes.has(at, name));
            let new = |name| {
                hashes_of_other.is_none_or(|run_hashes| !run_hashes.is_named(at))
                    && self
                        .find(self.key(other, size, name), other, size, name)
                        .is_none()
            };
            hashes_of_one.names(at).all(|name| same(name) || new(name))
        })
    }

    /// Copies hashes, except those that the group has already.
    fn copy(&mut self, number: u32, names: &[(u32, EngineHash)], writer: HashWriter) {
        let run_hashes = self.run_hashes.get(number);
        let (group, size) = (run_hashes.group, run_hashes.size);
        let writer = if run_hashes.is_empty() || run_hashes.writer == writer {
            writer
        } else {
            HashWriter::Several
        };
        if let (Some((from, _)), Some((to, _))) = (names.first(), names.last()) {
            let blocks = *from..to + 1;
            self.run_hashes
                .change(number, |run_hashes| run_hashes.reserve(&blocks));
        }
        for batch in names.chunks(BATCH) {
            let mut hashes = [EngineHash(0); BATCH];
            for (hash, (_, name)) in hashes.iter_mut().zip(batch) {
                *hash = *name;
            }
            let keys = self.keys(group, size, &hashes[..batch.len()]);
            for ((at, name), key) in batch.iter().zip(keys) {
                if self.find(key, group, size, *name).is_none() {
                    self.write(
                        key,
                        HashSlot {
                            run_hashes: number,
                            at: *at,
                        },
                        *name,
                    );
                    self.run_hashes
                        .change(number, |run_hashes| run_hashes.writer = writer);
                }
            }
        }
        self.free_if_empty(number);
    }

    /// Restores a member from a snapshot. `relative`: a restored member of the same group.
    pub(crate) fn restore_member(
        &mut self,
        common: u32,
        was: GroupMembership,
        relative: Option<u32>,
    ) {
        self.groups.join(was.member, common);
        let group = relative
            .and_then(|relative| self.groups.member(relative))
            .map(|relative| relative.group);
        if !was.common {
            self.groups.move_to(was.member, group);
        }
        if let Some(of) = self.groups.member_mut(was.member) {
            of.proven = was.proven;
            of.split = !was.common;
        }
    }

    /// Restores hashes of a member's group. Hashes and blocks that were reassigned stay unchanged.
    pub(crate) fn restore_hashes(&mut self, member: u32, run: u32, stretch: &NamedStretch) {
        let Some(group) = self.groups.member(member).map(|member| member.group) else {
            return;
        };
        let run_hashes = self.find_or_add_run_hashes(run, group, stretch.size);
        let names: Vec<_> = (stretch.at..).zip(stretch.names.iter().copied()).collect();
        self.copy(run_hashes, &names, HashWriter::Several);
    }
}
