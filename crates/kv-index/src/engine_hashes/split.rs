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
    /// holds (`held`: stretches of runs). The member joins a group that contradicts none of these
    /// hashes and has the refused hash; otherwise, and at every further split, it gets a group of
    /// its own, which no announcement of it contradicts.
    pub(crate) fn split_group(
        &mut self,
        member: u32,
        held: impl IntoIterator<Item = (u32, Range<u32>)>,
        contradiction: HashConflict,
    ) {
        let Some(of) = self.groups.member(member) else {
            return;
        };
        let (old, stint, parted) = (of.family, HashWriter::Stint(of.stint), of.split);
        let held: Vec<_> = held.into_iter().collect();
        let other = if parted {
            None
        } else {
            self.agreeing(old, &held, contradiction)
        };
        let Some(family) = self.groups.move_to(member, other) else {
            return;
        };
        if let Some(of) = self.groups.member_mut(member) {
            of.split = true;
            of.proven = other.is_some() && is_long(contradiction.name);
        }
        for (run, range) in held {
            let Some(sheet) = self
                .run_hashes
                .find(run, old)
                .map(|sheet| self.run_hashes.get(sheet))
            else {
                continue;
            };
            // Hashes of other authors are copied, but not as the member's own.
            let author = if sheet.author == stint {
                stint
            } else {
                HashWriter::Several
            };
            let size = sheet.size;
            let names: Vec<_> = sheet
                .within(&range)
                .flat_map(|at| sheet.names(at).map(move |name| (at, name)))
                .collect();
            let sheet = self.sheet(run, family, size);
            self.copy(sheet, &names, author);
        }
    }

    /// Returns a group that has the hash refused by another one, and is consistent with the
    /// member's blocks.
    fn agreeing(&self, old: u32, held: &[(u32, Range<u32>)], refused: HashConflict) -> Option<u32> {
        let sheets = self
            .run_hashes
            .of_run(refused.spot.run)
            .map(|sheet| self.run_hashes.get(sheet));
        let says_so = sheets
            .filter(|sheet| sheet.has(refused.spot.at, refused.name))
            .map(|sheet| sheet.family);
        let others = says_so.filter(|family| *family != old && self.groups.has_members(*family));
        others.take(CANDIDATES).find(|family| {
            held.iter()
                .all(|(run, range)| self.agree(old, *family, *run, range))
        })
    }

    /// Returns whether the hashes of some blocks in group `one` contradict none in group `other`.
    fn agree(&self, one: u32, other: u32, run: u32, range: &Range<u32>) -> bool {
        let sheet = |family| {
            self.run_hashes
                .find(run, family)
                .map(|sheet| self.run_hashes.get(sheet))
        };
        let Some(sheet_of_one) = sheet(one) else {
            return true;
        };
        let (sheet_of_other, size) = (sheet(other), sheet_of_one.size);
        sheet_of_one.within(range).all(|at| {
            let same = |name| sheet_of_other.is_some_and(|sheet| sheet.has(at, name));
            let new = |name| {
                sheet_of_other.is_none_or(|sheet| !sheet.is_named(at))
                    && self
                        .find(self.key(other, size, name), other, size, name)
                        .is_none()
            };
            sheet_of_one.names(at).all(|name| same(name) || new(name))
        })
    }

    /// Copies hashes, except those that the group has already.
    fn copy(&mut self, number: u32, names: &[(u32, EngineHash)], author: HashWriter) {
        let sheet = self.run_hashes.get(number);
        let (family, size) = (sheet.family, sheet.size);
        let author = if sheet.is_empty() || sheet.author == author {
            author
        } else {
            HashWriter::Several
        };
        if let (Some((from, _)), Some((to, _))) = (names.first(), names.last()) {
            let blocks = *from..to + 1;
            self.run_hashes
                .change(number, |sheet| sheet.reserve(&blocks));
        }
        for batch in names.chunks(BATCH) {
            let mut hashes = [EngineHash(0); BATCH];
            for (hash, (_, name)) in hashes.iter_mut().zip(batch) {
                *hash = *name;
            }
            let keys = self.keys(family, size, &hashes[..batch.len()]);
            for ((at, name), key) in batch.iter().zip(keys) {
                if self.find(key, family, size, *name).is_none() {
                    self.write(
                        key,
                        HashSlot {
                            sheet: number,
                            at: *at,
                        },
                        *name,
                    );
                    self.run_hashes
                        .change(number, |sheet| sheet.author = author);
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
        let family = relative
            .and_then(|relative| self.groups.member(relative))
            .map(|relative| relative.family);
        if !was.common {
            self.groups.move_to(was.member, family);
        }
        if let Some(of) = self.groups.member_mut(was.member) {
            of.proven = was.proven;
            of.split = !was.common;
        }
    }

    /// Restores hashes of a member's group. Hashes and blocks that were reassigned stay unchanged.
    pub(crate) fn restore_names(&mut self, member: u32, run: u32, stretch: &NamedStretch) {
        let Some(family) = self.groups.member(member).map(|member| member.family) else {
            return;
        };
        let sheet = self.sheet(run, family, stretch.size);
        let names: Vec<_> = (stretch.at..).zip(stretch.names.iter().copied()).collect();
        self.copy(sheet, &names, HashWriter::Several);
    }
}
